"""Collective operations over three tasks, both generations: reductions, gather, broadcast; the first worker leads."""
import numpy as np
import tensorflow as tf
from sessions import session

CLUSTER = {"worker": 3}
SIZE = 3


def on_all(build):
    """What `build(rank)` makes on each of the tasks."""
    made = []
    for rank in range(SIZE):
        with tf.device(f"/job:worker/task:{rank}"):
            made.append(build(rank))
    return made


def reductions(inputs):
    raw = tf.raw_ops
    keys = dict(group_size=SIZE, group_key=1)
    second = {merge: on_all(lambda r: raw.CollectiveReduceV2(input=tf.constant(inputs[r]), instance_key=key, merge_op=merge,
                                                             final_op="Id", ordering_token=[], **keys))
              for key, merge in enumerate(["Add", "Mul", "Min", "Max"], start=10)}
    mean = on_all(lambda r: raw.CollectiveReduceV2(input=tf.constant(inputs[r]), instance_key=20, merge_op="Add",
                                                   final_op="Div", ordering_token=[], **keys))
    first = on_all(lambda r: raw.CollectiveReduce(input=tf.constant(inputs[r]), instance_key=30, merge_op="Add",
                                                  final_op="Div", subdiv_offsets=[0], **keys))
    return second, mean, first


def moves(inputs):
    raw = tf.raw_ops
    keys = dict(group_size=SIZE, group_key=1)
    gathered = on_all(lambda r: raw.CollectiveGatherV2(input=tf.constant(inputs[r]), instance_key=40, ordering_token=[], **keys))
    gathered_first = on_all(lambda r: raw.CollectiveGather(input=tf.constant(inputs[r]), instance_key=41,
                                                           shape=[SIZE * inputs[0].shape[0], inputs[0].shape[1]], **keys))

    def broadcast(rank):
        if rank == 1:
            return raw.CollectiveBcastSendV2(input=tf.constant(inputs[1]), instance_key=50, **keys)
        return raw.CollectiveBcastRecvV2(T=tf.float32, shape=inputs[1].shape, instance_key=50, **keys)

    def broadcast_first(rank):
        if rank == 0:
            return raw.CollectiveBcastSend(input=tf.constant(inputs[0]), instance_key=51, shape=inputs[0].shape, **keys)
        return raw.CollectiveBcastRecv(T=tf.float32, instance_key=51, shape=inputs[0].shape, **keys)
    return gathered, gathered_first, on_all(broadcast), on_all(broadcast_first)


def run(cluster):
    random = np.random.default_rng(8)
    inputs = [random.normal(size=(4, 250)).astype(np.float32) for _ in range(SIZE)]
    with session(cluster.target()) as sess:
        calls = reductions(inputs), moves(inputs)
        for _ in range(2):
            (second, mean, first), (gathered, gathered_first, broadcast, broadcast_first) = sess.run(calls)
            by_hand = {"Add": sum(inputs), "Mul": inputs[0] * inputs[1] * inputs[2],
                       "Min": np.minimum.reduce(inputs), "Max": np.maximum.reduce(inputs)}
            for merge, expected in by_hand.items():
                for each in second[merge]:
                    np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-5)
            for each in mean + first:
                np.testing.assert_allclose(each, sum(inputs) / SIZE, rtol=1e-5, atol=1e-6)
            for each in gathered + gathered_first:
                assert (each == np.concatenate(inputs)).all()
            assert all((each == inputs[1]).all() for each in broadcast)
            assert all((each == inputs[0]).all() for each in broadcast_first)
