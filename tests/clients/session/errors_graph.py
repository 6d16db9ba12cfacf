"""Graphs that cannot run, sent past the client's own checks: the status and the name of what is wrong. The server goes on."""
import tensorflow as tf
from google.protobuf import text_format
from sessions import fails, session
from tensorflow.core.framework import graph_pb2
from wire import Master

CLUSTER = {"worker": 1}
FLOAT = 'attr { key: "T" value { type: DT_FLOAT } }'
INVALID, MISSING = tf.errors.InvalidArgumentError, tf.errors.NotFoundError


def node(name, op, *inputs, device="", attrs=FLOAT):
    given = " ".join(f'input: "{each}"' for each in inputs)
    return f'node {{ name: "{name}" op: "{op}" device: "{device}" {given} {attrs} }}\n'


def constant(name, dtype, tensor, held=None):
    return node(name, "Const", attrs=f'attr {{ key: "dtype" value {{ type: {dtype} }} }} attr {{ key: "value" '
                                     f'value {{ tensor {{ dtype: {held or dtype} {tensor} }} }} }}')


SOUND = constant("a", "DT_FLOAT", "tensor_shape { } float_val: 1") + constant("i", "DT_INT32", "tensor_shape { } int_val: 1")


def shaped(*sizes):
    return "tensor_shape { " + " ".join(f"dim {{ size: {size} }}" for size in sizes) + " } "


# What is wrong: nodes beside the sound ones, the error, words of its message. The step fetches x:0.
WRONG = {
    "an unknown operation": (node("x", "MatMull", "a"), MISSING, "MatMull"),
    "a missing input": (node("x", "Neg", "nothing"), INVALID, "x", "nothing"),
    "a missing control input": (node("x", "Neg", "a", "^nothing"), INVALID, "x", "nothing"),
    "an output that its node lacks": (node("x", "Neg", "a:3"), INVALID, "x", "3", "a"),
    "too few inputs": (node("x", "AddV2", "a"), INVALID, "x"),
    "too many inputs": (node("x", "Neg", "a", "a"), INVALID, "x"),
    "an input of another type": (node("x", "AddV2", "a", "i"), INVALID, "x", "int32", "float", "i"),
    "an attribute that is not there": (node("x", "Neg", "a", attrs=""), MISSING, "T", "x"),
    "an attribute of another kind": (node("x", "Neg", "a", attrs='attr { key: "T" value { b: true } }'), INVALID, "x"),
    "a name twice": (SOUND, INVALID, "a"),
    "a cycle": (node("x", "Neg", "y") + node("y", "Neg", "x"), INVALID, "cycle"),
    "a cycle of controls": (node("x", "Neg", "a", "^y") + node("y", "NoOp", "^x", attrs=""), INVALID, "cycle"),
    "a name that is none": (node("x y", "NoOp", attrs="") + node("x", "Neg", "a"), INVALID, "x y"),
    "more elements than can be counted": (constant("x", "DT_FLOAT", shaped(10**9, 10**9, 10**9) + "float_val: 1"), INVALID, "x"),
    "fewer bytes than elements": (constant("x", "DT_FLOAT", shaped(100) + 'tensor_content: "abc"'), INVALID, "x"),
    "a negative size": (constant("x", "DT_FLOAT", shaped(-2) + "float_val: 1"), INVALID, "x"),
    "a constant of another type": (constant("x", "DT_FLOAT", "tensor_shape { } int_val: 1", "DT_INT32"), INVALID, "x", "int32", "float"),
    "a device that is no name": (node("x", "Neg", "a", device="nonsense"), INVALID, "nonsense", "x"),
    "shapes that do not fit": (constant("m", "DT_FLOAT", shaped(2, 3) + "float_val: 1") + node("x", "MatMul", "m", "m"), INVALID, "x", r"\[2,3\]"),
}


def graph(text):
    return text_format.Parse(text, graph_pb2.GraphDef())


def run(cluster):
    master = Master(cluster.addresses["worker"][0])
    for what, (nodes, kind, *words) in WRONG.items():
        print(f"== {what}")
        with fails(kind, *words):
            handle = master.create(graph(SOUND + nodes))
            try:
                master.run(handle, fetch=["x:0"])
            finally:
                master.close(handle)
    extended(master)
    devices(cluster)
    with session(cluster.target()) as sess:
        assert sess.run(tf.constant(1) + 1) == 2, "the server goes on"


def extended(master):
    """A session that grows by what does not fit, and by what does."""
    handle = master.create(graph(SOUND))
    more = graph(node("x", "Neg", "a"))
    with fails(tf.errors.AbortedError, "0", "3"):
        master.extend(handle, more, version=3)
    with fails(INVALID, "a"):
        master.extend(handle, graph(SOUND), version=0)
    assert master.extend(handle, more, version=0) == 1
    master.run(handle, fetch=["x:0"])
    master.close(handle)


def devices(cluster):
    for device in ["/job:worker/task:7", "/job:nowhere/task:0", "/device:GPU:0"]:
        with session(cluster.target()) as sess, tf.device(device):
            lost = tf.matmul([[1.0]], [[1.0]], name="lost")
            with fails(INVALID, "lost", device, "/job:worker/replica:0/task:0/device:CPU:0"):
                sess.run(lost)
    soft = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    with session(cluster.target(), soft) as sess, tf.device("/device:GPU:0"):
        assert sess.run(tf.matmul([[2.0]], [[3.0]])) == 6.0
