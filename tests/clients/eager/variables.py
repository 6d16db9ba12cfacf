"""Variables on a remote device: made, read, changed, read by numpy(), and gone."""
import numpy as np
import tensorflow as tf
from remote import CPU

CLUSTER = {"worker": 1}


def run(cluster):
    tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
    with tf.device(CPU.format(0)):
        v = tf.Variable(np.arange(6, dtype=np.float32).reshape(2, 3))
        assert v.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        v.assign_add(tf.ones([2, 3]))
        v.assign_sub(tf.fill([2, 3], 0.5))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(v))
        slope = tape.gradient(loss, v)
        v.assign(v - 0.1 * slope)
    np.testing.assert_allclose(v.numpy(), (np.arange(6).reshape(2, 3) + 0.5) * 0.8, rtol=1e-6)
    del v
    with tf.device(CPU.format(0)):
        again = tf.Variable(3)
        again.assign_add(4)
    assert again.numpy() == 7
