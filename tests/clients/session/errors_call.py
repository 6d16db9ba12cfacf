"""Calls that make no sense, past the client's own checks: nothing to run, what is not there, sessions that are closed."""
import tensorflow as tf
from sessions import fails, session
from tensorflow.core.framework import graph_pb2
from wire import Master

CLUSTER = {"worker": 1}
INVALID, MISSING, ABORTED = tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.AbortedError


def run(cluster):
    with tf.Graph().as_default() as built:
        tf.constant(1.0, name="a")
    master = Master(cluster.addresses["worker"][0])
    handle = master.create(built.as_graph_def())
    with fails(INVALID, "[Mm]ust specify at least one target"):
        master.run(handle)
    with fails(MISSING, "nothing:0"):
        master.run(handle, fetch=["nothing:0"])
    with fails(INVALID, "a:4"):
        master.run(handle, fetch=["a:4"])
    with fails(MISSING, "nothing"):
        master.run(handle, target=["nothing"])
    master.run(handle, fetch=["a:0"])
    master.close(handle)
    for call in [lambda: master.run(handle, fetch=["a:0"]), lambda: master.close(handle),
                 lambda: master.extend(handle, built.as_graph_def(), 0)]:
        with fails(ABORTED, handle):
            call()
    for method in ["PartialRunSetup", "MakeCallable", "RunCallable"]:
        with fails(ABORTED):
            master.call(method, b"")
    with fails(tf.errors.InternalError):
        master.call("CreateSession", b"\x0a\xff\xff")  # no message at all
    master.close(master.create(graph_pb2.GraphDef()))
    with session(cluster.target()) as sess:
        one = tf.constant(1) + 1
        assert sess.run(one) == 2, "the server goes on"
        assert sess.run([]) == []
        sess.close()
        try:
            sess.run(one)
        except RuntimeError as error:
            assert "closed" in str(error)
        else:
            raise AssertionError("a closed session runs")
