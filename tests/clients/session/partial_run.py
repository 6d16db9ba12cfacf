"""A step in several calls: some feeds, some fetches, more of both."""
import tensorflow as tf
from sessions import fails, session, v1

CLUSTER = {"worker": 1}


def run(cluster):
    with session(cluster.target()) as sess:
        a, b, c = (v1.placeholder(tf.float32, []) for _ in range(3))
        first = a + b
        second = first * c
        for _ in range(2):
            handle = sess.partial_run_setup([first, second], [a, b, c])
            assert sess.partial_run(handle, first, {a: 1.0, b: 2.0}) == 3.0
            assert sess.partial_run(handle, second, {c: 10.0}) == 30.0
        handle = sess.partial_run_setup([first, second], [a, b, c])
        with fails(tf.errors.InvalidArgumentError):
            sess.partial_run(handle, second, {a: 1.0})  # b and c are not fed
