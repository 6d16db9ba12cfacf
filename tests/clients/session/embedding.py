"""An embedding: rows looked up, and updated by the sparse gradient of those that were, some of them twice."""
import numpy as np
import tensorflow as tf
from sessions import same, v1

CLUSTER = {"worker": 1}


def program(use_resource):
    def steps(sess):
        random = np.random.default_rng(5)
        start = random.normal(size=(50, 6)).astype(np.float32)
        table = v1.Variable(start, name="table", use_resource=use_resource)
        ids = v1.placeholder(tf.int32, [None])
        wanted = v1.placeholder(tf.float32, [None, 6])
        rows = tf.nn.embedding_lookup(table, ids)
        loss = tf.reduce_mean(tf.square(rows - wanted))
        descent = v1.train.GradientDescentOptimizer(0.5).minimize(loss)
        adam = v1.train.AdamOptimizer(0.1).minimize(loss)
        sess.run(v1.global_variables_initializer())
        fed = {ids: [3, 7, 7, 49, 0], wanted: np.ones((5, 6), np.float32)}
        first = sess.run(rows, fed)
        losses = [sess.run([loss, train], fed)[0] for train in [descent, adam] for _ in range(10)]
        return first, losses, sess.run(table)
    return steps


def run(cluster):
    for use_resource in [True, False]:
        _, losses, table = same(cluster, program(use_resource))
        assert losses[-1] < losses[0] and table.shape == (50, 6)
