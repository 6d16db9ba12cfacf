"""Steps that fail, and what is said of them; the session goes on."""
import numpy as np
import tensorflow as tf
from sessions import fails, session, v1

CLUSTER = {"worker": 1}


def raw(sess, feeds, fetches, targets):
    """A step past the client's own checks."""
    sess._extend_graph()
    return sess._call_tf_sessionrun(None, feeds, fetches, targets, None)


def run(cluster):
    # A stock server says INTERNAL here; a client's mistake is INVALID_ARGUMENT, as a local session says.
    wrong_feed = tf.errors.InternalError if cluster.kind() == "stock" else tf.errors.InvalidArgumentError
    with session(cluster.target()) as sess:
        x = v1.placeholder(tf.float32, [2, 2], name="x")
        loose = v1.placeholder(tf.float32, name="loose")
        y = tf.identity(x + 1.0, name="y")
        product = tf.matmul(loose, [[1.0], [2.0]], name="product")
        divisor = v1.placeholder(tf.int32, [], name="divisor")
        quotient = tf.math.floordiv(7, divisor, name="quotient")
        unset = v1.get_variable("unset", initializer=1.0, use_resource=True)
        reference = v1.get_variable("reference", initializer=1.0, use_resource=False)

        with fails(tf.errors.InvalidArgumentError, "x", "feed"):
            sess.run(y)
        with fails(tf.errors.InvalidArgumentError, "product", r"\[3,1\]|\[1,3\]"):
            sess.run(product, {loose: np.ones((1, 3))})
        with fails(tf.errors.InvalidArgumentError, "quotient", "[Dd]ivision|divi"):
            sess.run(quotient, {divisor: 0})
        with fails(tf.errors.FailedPreconditionError, "unset"):
            sess.run(unset)
        with fails(tf.errors.FailedPreconditionError, "reference"):
            sess.run(reference)
        with fails(wrong_feed, "x", "float"):
            raw(sess, {x._as_tf_output(): np.ones((2, 2), np.int64)}, [y._as_tf_output()], [])
        assert sess.run(y, {x: np.zeros((2, 2))}).tolist() == [[1.0, 1.0], [1.0, 1.0]], "the session goes on"
