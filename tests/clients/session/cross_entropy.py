"""Softmax and its cross entropy, by labels and by distributions, with their gradients: the numbers of a local session."""
import numpy as np
import tensorflow as tf
from sessions import same

CLUSTER = {"worker": 1}


def program(sess):
    random = np.random.default_rng(2)
    logits = tf.constant(random.normal(size=(9, 5)).astype(np.float32) * 10)
    labels = tf.constant(random.integers(0, 5, 9))
    shares = tf.nn.softmax(tf.constant(random.normal(size=(9, 5)).astype(np.float32)))
    sparse = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    dense = tf.nn.softmax_cross_entropy_with_logits(labels=shares, logits=logits)
    right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    return sess.run([tf.nn.softmax(logits), tf.nn.log_softmax(logits), sparse, dense, right,
                     tf.gradients(sparse, logits), tf.gradients(dense, logits)])


def run(cluster):
    same(cluster, program)
