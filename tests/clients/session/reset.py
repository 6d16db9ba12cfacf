"""Session.reset: every session of the master is gone, and the variables with them."""
import tensorflow as tf
from sessions import fails, session, v1

CLUSTER = {"worker": 2}


def run(cluster):
    # The reset session cannot be closed either.
    with fails(tf.errors.AbortedError), session(cluster.target()) as sess:
        with tf.device("/job:worker/task:1"):
            kept = v1.get_variable("kept", initializer=5.0, use_resource=True)
        sess.run(kept.initializer)
        assert sess.run(kept) == 5.0
        v1.Session.reset(cluster.target())
        with fails(tf.errors.AbortedError):
            sess.run(kept)
    with session(cluster.target()) as sess:
        with tf.device("/job:worker/task:1"):
            kept = v1.get_variable("kept", initializer=5.0, use_resource=True)
        with fails(tf.errors.FailedPreconditionError, "kept"):
            sess.run(kept)
