"""A product of two constants."""
import tensorflow as tf
from sessions import session

CLUSTER = {"worker": 1}


def run(cluster):
    with session(cluster.target()) as sess:
        product = tf.matmul([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]])
        assert sess.run(product).tolist() == [[19.0, 22.0], [43.0, 50.0]]
        assert sess.run(product, options=None).tolist() == [[19.0, 22.0], [43.0, 50.0]]
