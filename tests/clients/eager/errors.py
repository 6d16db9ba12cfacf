"""Remote operations that fail: the error reaches the client, which goes on."""
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
            assert tf.math.floordiv(tf.constant([4, 2]), tf.constant([2, 1])).numpy().tolist() == [2, 2]
        with fails(tf.errors.InvalidArgumentError, "7"):
            tf.gather(tf.constant([1.0, 2.0]), tf.constant([7])).numpy()
        assert tf.matmul(tf.ones([2, 3]), tf.ones([3, 2])).numpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]
