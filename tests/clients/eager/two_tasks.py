"""connect_to_cluster: tensors copied between two tasks, and many handles released."""
import numpy as np
import tensorflow as tf
from remote import CPU

CLUSTER = {"worker": 2}


def run(cluster):
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster.addresses), job_name="client")
    numbers = np.random.default_rng(4).normal(size=(300, 200)).astype(np.float32)
    with tf.device(CPU.format(0)):
        here = tf.constant(numbers) * 2.0
    with tf.device(CPU.format(1)):
        there = tf.identity(here)
        product = tf.matmul(there, here, transpose_a=True)
    with tf.device(CPU.format(0)):
        back = product + 1.0
    assert there.device == CPU.format(1) and back.device == CPU.format(0)
    np.testing.assert_allclose(back.numpy(), 4 * numbers.T @ numbers + 1, rtol=1e-4, atol=1e-3)
    total = tf.constant(0.0)
    for n in range(200):  # each turn lets go of the handle of the last
        with tf.device(CPU.format(n % 2)):
            total = total + float(n)
    assert total.numpy() == sum(range(200))
