#!/usr/bin/env python3
"""Mirrored training: stock TensorFlow trains on handwritten digits over a cluster of `ringway serve`.

Every worker holds all variables, computes the gradients of its part of the batch, and adds them up with the other
workers' by a collective operation (CollectiveReduceV2), which Ringway runs on its data plane.

  echo '{"worker": ["127.0.0.1:29511", "127.0.0.1:29512"]}' > cluster.json
  for task in 0 1; do ringway serve --cluster cluster.json --job worker --task $task & done
  python examples/python/mirrored.py --cluster cluster.json
"""
import argparse
import json
import sys

import digits
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
BATCH = 64
GROUP = 1  # the key of the group of all workers
RATE, MOMENTUM = 0.1, 0.9


def network(images):
    """Logits of 8 x 8 images: one hidden layer."""
    for name, inputs, outputs in [("hidden", 64, 64), ("logits", 64, 10)]:
        with v1.variable_scope(name):
            # The same seed on every worker: all begin with the same numbers, and so end with the same.
            weights = v1.get_variable("weights", [inputs, outputs], initializer=v1.glorot_uniform_initializer(seed=1))
            bias = v1.get_variable("bias", [outputs], initializer=v1.zeros_initializer())
        images = tf.matmul(images, weights) + bias
        if name == "hidden":
            images = tf.nn.relu(images)
    return images


def mean_over_workers(gradient, workers, instance):
    """The gradient's mean over all workers, on each of them. `instance` names this call on all workers."""
    return tf.raw_ops.CollectiveReduceV2(
        input=gradient, group_size=workers, group_key=GROUP, instance_key=instance, ordering_token=[],
        merge_op="Add", final_op="Div")


def replica(index, workers):
    """The network on one worker: its images, its labels, its logits, and its part of a step."""
    with tf.device(f"/job:worker/task:{index}"), v1.variable_scope(f"worker{index}"):
        x, y = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int32, [None])
        logits = network(x)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
        own = v1.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES, scope=f"worker{index}/")
        gradients = optimizer.compute_gradients(loss, own)
        means = [(mean_over_workers(gradient, workers, number), variable)
                 for number, (gradient, variable) in enumerate(gradients, start=1)]
        return x, y, logits, optimizer.apply_gradients(means), own


def train(cluster, epochs):
    """Trains on all workers. Returns the share of the held-out images that worker 0 reads, and all workers' variables."""
    workers = len(cluster["worker"])
    (images, labels), held_out = digits.load()
    with tf.Graph().as_default():
        replicas = [replica(index, workers) for index in range(workers)]
        step = tf.group(*(update for _, _, _, update, _ in replicas))
        x, y, logits, _, _ = replicas[0]
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
        with v1.Session(f"grpc://{cluster['worker'][0]}") as session:
            session.run(v1.global_variables_initializer())
            for batch in digits.batches(len(labels), BATCH, epochs, seed=1):
                feeds = {}
                for (x, y, *_), share in zip(replicas, np.array_split(batch, workers)):
                    feeds.update({x: images[share], y: labels[share]})
                session.run(step, feeds)
            x, y = replicas[0][:2]
            share = session.run(right, {x: held_out[0], y: held_out[1]})
            return share, session.run([own for *_, own in replicas])


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True, help="a JSON file: {JOB: [HOST:PORT, ...]} with the job worker")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args(arguments)
    with open(args.cluster) as file:
        cluster = json.load(file)
    share, variables = train(cluster, args.epochs)
    same = all((mine == first).all() for each in variables[1:] for mine, first in zip(each, variables[0]))
    print(f"accuracy {100 * share:.2f} % held out; all workers hold the same numbers: {'yes' if same else 'NO'}")
    return share if same else 0.0


if __name__ == "__main__":
    sys.exit(0 if main() > 0.9 else 1)
