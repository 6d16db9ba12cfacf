"""connect_to_host: a product on a remote device, and what of it comes back."""
import tensorflow as tf
from remote import CPU

CLUSTER = {"worker": 1}


def run(cluster):
    tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
    with tf.device(CPU.format(0)):
        a = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        product = tf.matmul(a, a)
    assert product.device == CPU.format(0), product.device
    assert product.numpy().tolist() == [[7.0, 10.0], [15.0, 22.0]]
    local = tf.constant([[1.0, 0.0], [0.0, 2.0]])
    with tf.device(CPU.format(0)):
        mixed = tf.matmul(product, local)
    assert mixed.numpy().tolist() == [[7.0, 20.0], [15.0, 44.0]]
    assert (product + 1.0).numpy().tolist() == [[8.0, 11.0], [16.0, 23.0]]
