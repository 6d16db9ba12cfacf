"""Training on the digits, here and on a cluster."""
import digits
import tensorflow as tf
from sessions import both, v1

BATCH = 64
WITHIN = 0.01


def accuracy_of(network, optimizer, epochs, use_resource):
    """A program for sessions.both: builds and trains the network; the share of the held-out digits it reads."""
    def program(sess):
        v1.set_random_seed(20)
        (images, labels), held_out = digits.load()
        x, y = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int32, [None])
        logits = network(x, use_resource)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        train = optimizer().minimize(loss)
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
        sess.run(v1.global_variables_initializer())
        for batch in digits.batches(len(labels), BATCH, epochs, seed=1):
            sess.run(train, {x: images[batch], y: labels[batch]})
        return sess.run(right, {x: held_out[0], y: held_out[1]})
    return program


def as_accurate_as_local(cluster, network, optimizer, epochs, use_resource=True):
    """Asserts that training on the cluster is as good as in a local session, within one in a hundred."""
    local, remote = both(cluster, accuracy_of(network, optimizer, epochs, use_resource))
    print(f"accuracy: local {local:.4f}, on the cluster {remote:.4f}")
    assert local > 0.93, local
    assert remote > local - WITHIN, (local, remote)
