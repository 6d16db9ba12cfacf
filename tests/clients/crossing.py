"""A graph whose tensors cross between two tasks in both directions: the numbers of a local session."""
import numpy as np
import tensorflow as tf
from sessions import session, v1

STEPS = 20


def program(sess, devices):
    random = np.random.default_rng(13)
    x = tf.constant(random.normal(size=(32, 8)).astype(np.float32))
    y = tf.constant(random.normal(size=(32, 3)).astype(np.float32))
    with tf.device(devices[0]):
        first = v1.get_variable("first", initializer=random.normal(size=(8, 16)).astype(np.float32), use_resource=True)
        hidden = tf.nn.relu(tf.matmul(x, first))
    with tf.device(devices[1]):
        second = v1.get_variable("second", initializer=random.normal(size=(16, 3)).astype(np.float32), use_resource=True)
        output = tf.matmul(hidden, second)
    with tf.device(devices[0]):
        loss = tf.reduce_mean(tf.square(output - y))
    train = v1.train.GradientDescentOptimizer(0.02).minimize(loss)
    sess.run(v1.global_variables_initializer())
    losses = [sess.run([loss, train])[0] for _ in range(STEPS)]
    counted = ints(devices)
    return losses, sess.run([first, second]), sess.run(counted)


def ints(devices):
    """Types other than float, and a tensor of nothing, over the border and back."""
    with tf.device(devices[0]):
        whole = tf.range(10, dtype=tf.int64)
        none = tf.zeros([0, 4])
    with tf.device(devices[1]):
        more = [whole * 2, tf.concat([none, tf.ones([1, 4])], 0), tf.greater(whole, 5)]
    with tf.device(devices[0]):
        return [tf.identity(each) for each in more]


def check(cluster):
    with session("") as sess:
        local = program(sess, [None, None])
    with session(cluster.target()) as sess:
        remote = program(sess, ["/job:worker/task:0", "/job:worker/task:1"])
    for here, there in zip(tf.nest.flatten(local), tf.nest.flatten(remote)):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)
    assert remote[0][-1] < remote[0][0]
