"""A tf.function on a remote device, traced for two shapes, with a variable, a loop and a condition in it."""
import numpy as np
import tensorflow as tf
from remote import CPU

CLUSTER = {"worker": 1}


def run(cluster):
    tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
    with tf.device(CPU.format(0)):
        v = tf.Variable(2.0)

        @tf.function
        def scaled(x):
            return tf.reduce_sum(x * v)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.square(scaled(x) - 6.0)
            v.assign_sub(0.01 * tape.gradient(loss, v))
            return loss

        assert scaled(tf.constant([1.0, 2.0])).numpy() == 6.0
        assert scaled(tf.ones([2, 2])).numpy() == 8.0
        losses = [step(tf.constant([1.0, 3.0])).numpy() for _ in range(5)]
        assert losses[0] == 4.0 and losses[-1] < losses[0]
    np.testing.assert_allclose(v.numpy(), 1.5 + 0.5 * 0.68 ** 5, rtol=1e-5)
