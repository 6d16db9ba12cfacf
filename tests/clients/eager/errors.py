"""Remote operations that fail: the error reaches the client, which goes on.

Clients send remote operations without waiting. What they sent behind one that fails may fail too, of the missing result,
and they say so at their next operation unless they are told to forget it: with any server, once in some hundred errors.
"""
import tensorflow as tf
from remote import CPU
from sessions import fails

CLUSTER = {"worker": 1}


def run(cluster):
    tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
    with tf.device(CPU.format(0)):
        for _ in range(2):
            with fails(tf.errors.InvalidArgumentError, "zero"):
                tf.math.floordiv(tf.constant([4, 2]), tf.constant([2, 0])).numpy()
            tf.experimental.async_clear_error()
            assert tf.math.floordiv(tf.constant([4, 2]), tf.constant([2, 1])).numpy().tolist() == [2, 2]
        with fails(tf.errors.InvalidArgumentError, "7"):
            tf.gather(tf.constant([1.0, 2.0]), tf.constant([7])).numpy()
        tf.experimental.async_clear_error()
        assert tf.matmul(tf.ones([2, 3]), tf.ones([3, 2])).numpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]
