"""Linear regression with gradient descent: the loss of every step as in a local session, for both kinds of variables."""
import numpy as np
import tensorflow as tf
from sessions import same, v1

CLUSTER = {"worker": 1}
STEPS = 100


def regression(use_resource):
    def program(sess):
        random = np.random.default_rng(7)
        inputs = random.normal(size=(64, 3)).astype(np.float32)
        outputs = inputs @ np.array([[1.5], [-2.0], [0.5]], np.float32) + 0.7
        x, y = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32, [None, 1])
        weights = v1.Variable(tf.zeros([3, 1]), name="weights", use_resource=use_resource)
        bias = v1.Variable(0.0, name="bias", use_resource=use_resource)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - y))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        sess.run(v1.global_variables_initializer())
        fed = {x: inputs, y: outputs}
        losses = [sess.run([loss, train], fed)[0] for _ in range(STEPS)]
        return losses, sess.run([weights, bias])
    return program


def run(cluster):
    for use_resource in [True, False]:
        losses, (weights, bias) = same(cluster, regression(use_resource), tolerance=1e-5)
        assert losses[-1] < 1e-3 < losses[0]
        np.testing.assert_allclose(weights.ravel(), [1.5, -2.0, 0.5], atol=0.05)
        np.testing.assert_allclose(bias, 0.7, atol=0.05)
