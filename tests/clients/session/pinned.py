"""A graph over a parameter server and a worker: variables there, work here, and how the tensors travelled."""
import numpy as np
import tensorflow as tf
from sessions import session, v1
from traffic import assert_no_tensor_in_grpc

CLUSTER = {"ps": 1, "worker": 1}
STEPS = 20


def run(cluster):
    random = np.random.default_rng(3)
    inputs = random.normal(size=(256, 512)).astype(np.float32)
    start = random.normal(size=(512, 256)).astype(np.float32) * 0.01
    with session(cluster.target("worker")) as sess:
        with tf.device("/job:ps/task:0"):
            weights = v1.get_variable("weights", initializer=start, use_resource=True)
            small = v1.get_variable("small", initializer=np.float32(1.0), use_resource=True)
        with tf.device("/job:worker/task:0"):
            x = v1.placeholder(tf.float32, [256, 512])
            loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) * small - 1.0))
        train = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
        sess.run(v1.global_variables_initializer())
        losses = [sess.run([loss, train], {x: inputs})[0] for _ in range(STEPS)]
        learned, scale = sess.run([weights, small])

    # The same by hand.
    expected, factor, by_hand = start.astype(np.float64), 1.0, []
    for _ in range(STEPS):
        product = inputs @ expected
        error = product * factor - 1.0
        by_hand.append(np.mean(error ** 2))
        slope = 2.0 * error / error.size
        step = inputs.T @ (slope * factor)
        factor -= 0.5 * np.sum(slope * product)
        expected = expected - 0.5 * step
    np.testing.assert_allclose(losses, by_hand, rtol=1e-4)
    np.testing.assert_allclose(learned, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scale, factor, rtol=1e-4)
    assert losses[-1] < losses[0]
    assert_no_tensor_in_grpc(cluster, at_least=2 * STEPS)
