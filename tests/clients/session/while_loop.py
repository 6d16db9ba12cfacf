"""Loops of TensorFlow 1 (Enter, Switch, Merge, Exit): numbers, nested, of no turns, and through a gradient."""
import numpy as np
import tensorflow as tf
from sessions import same, v1

CLUSTER = {"worker": 1}


def program(sess):
    limit = v1.placeholder(tf.int32, [])
    counted, total = v1.while_loop(lambda i, s: i < limit, lambda i, s: (i + 1, s + tf.cast(i, tf.float32)), [0, 0.0])
    runs = [sess.run([counted, total], {limit: n}) for n in [0, 1, 10, 1000]]

    def row(i, total):
        inner = v1.while_loop(lambda j, s: j < i, lambda j, s: (j + 1, s + i * j), [0, 0])
        return i + 1, total + inner[1]
    nested = v1.while_loop(lambda i, _: i < 12, row, [0, 0], parallel_iterations=4)

    matrix = tf.constant(np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32) * 0.4)
    power = v1.while_loop(lambda i, m: i < 5, lambda i, m: (i + 1, tf.matmul(m, matrix)), [0, tf.eye(4)])[1]
    slope = tf.gradients(tf.reduce_sum(power), matrix)[0]

    grown = v1.while_loop(lambda x: tf.shape(x)[0] < 9, lambda x: tf.concat([x, x * 2.0], 0), [tf.ones([3, 2])],
                          shape_invariants=[tf.TensorShape([None, 2])])
    return runs, sess.run([nested, power, slope, grown])


def run(cluster):
    # The v1 forms are what a session of TensorFlow 1 sends; the v2 ones are functions.
    v1.disable_control_flow_v2()
    runs, _ = same(cluster, program)
    assert runs[2] == [10, 45.0]
