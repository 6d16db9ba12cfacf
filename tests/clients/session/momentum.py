"""Momentum, plain and Nesterov's, for both kinds of variables: the numbers of a local session."""
import numpy as np
import tensorflow as tf
from sessions import same, v1

CLUSTER = {"worker": 1}


def program(use_resource, nesterov):
    def steps(sess):
        random = np.random.default_rng(11)
        x = tf.constant(random.normal(size=(32, 8)).astype(np.float32))
        y = tf.constant(random.normal(size=(32, 4)).astype(np.float32))
        weights = v1.Variable(tf.fill([8, 4], 0.1), use_resource=use_resource)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.1, step, 10, 0.9)
        optimizer = v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=nesterov)
        train = optimizer.minimize(loss, global_step=step)
        sess.run(v1.global_variables_initializer())
        losses = [sess.run([loss, train])[0] for _ in range(30)]
        return losses, sess.run([weights, step, optimizer.get_slot(weights, "momentum")])
    return steps


def run(cluster):
    for use_resource in [True, False]:
        for nesterov in [False, True]:
            losses, (_, step, _) = same(cluster, program(use_resource, nesterov), tolerance=1e-5)
            assert step == 30 and losses[-1] < losses[0]
