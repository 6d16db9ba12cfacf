"""A tf.function with a loop and a condition that depend on its input."""
import tensorflow as tf
from remote import CPU

CLUSTER = {"worker": 1}


@tf.function
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def run(cluster):
    tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
    with tf.device(CPU.format(0)):
        assert collatz(tf.constant(27)).numpy() == 111
        assert collatz(tf.constant(1)).numpy() == 0
