#!/usr/bin/env python3
"""Parameter servers: stock TensorFlow trains on handwritten digits over a cluster of `ringway serve`.

Variables live on the ps tasks, in turns. Each worker reads them, computes gradients of a batch, and sends those back.

  echo '{"ps": ["127.0.0.1:29501", "127.0.0.1:29502"], "worker": ["127.0.0.1:29511", "127.0.0.1:29512"]}' > cluster.json
  for task in ps:0 ps:1 worker:0 worker:1; do
    ringway serve --cluster cluster.json --job ${task%:*} --task ${task#*:} &
  done
  python examples/python/parameter_server.py --cluster cluster.json          # asynchronous
  python examples/python/parameter_server.py --cluster cluster.json --sync

Asynchronous: every worker has a thread and a session of its own, and updates whenever it is done. When a worker dies,
the others do its batches. Synchronous: in each step every worker does a part of the batch, and the mean is applied once.
"""
import argparse
import json
import queue
import sys
import threading

import digits
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
BATCH = 64
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
CALL_MS = 10_000  # no call of a session takes longer


def network(images):
    """Logits of 8 x 8 images: one hidden layer."""
    for name, inputs, outputs in [("hidden", 64, 64), ("logits", 64, 10)]:
        with v1.variable_scope(name, reuse=v1.AUTO_REUSE):
            weights = v1.get_variable("weights", [inputs, outputs])
            bias = v1.get_variable("bias", [outputs], initializer=v1.zeros_initializer())
        images = tf.matmul(images, weights) + bias
        if name == "hidden":
            images = tf.nn.relu(images)
    return images


def loss_of(images, labels):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=network(images)))


def fed():
    return v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int32, [None])


def on_worker(cluster, index):
    """Variables on the parameter servers, in turns; everything else on this worker."""
    return v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}"))


def master(cluster):
    """A parameter server is every session's master: it is there whatever becomes of the workers."""
    return f"grpc://{cluster['ps'][0]}"


def only(index):
    """A session that needs the parameter servers and one worker, whatever becomes of the others."""
    return v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"], operation_timeout_in_ms=CALL_MS)


def train_asynchronously(cluster, batches, images, labels):
    todo = queue.SimpleQueue()
    for batch in batches:
        todo.put(batch)
    initialised = threading.Event()
    done = [0] * len(cluster["worker"])

    def worker(index):
        with tf.Graph().as_default():
            v1.set_random_seed(1)
            with on_worker(cluster, index):
                x, y = fed()
                train = v1.train.GradientDescentOptimizer(0.2).minimize(loss_of(x, y))
            with v1.Session(master(cluster), config=only(index)) as session:
                if index == 0:
                    session.run(v1.global_variables_initializer())
                    initialised.set()
                initialised.wait()
                while True:
                    try:
                        batch = todo.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        session.run(train, {x: images[batch], y: labels[batch]})
                        done[index] += 1
                    except LOST:
                        todo.put(batch)
                        raise

    def guarded(index):
        try:
            worker(index)
        except LOST as error:
            print(f"worker {index} is lost, the others go on ({type(error).__name__})")

    threads = [threading.Thread(target=guarded, args=[index]) for index in range(len(done))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print("batches done by each worker: " + ", ".join(map(str, done)))


def train_synchronously(cluster, batches, images, labels):
    workers = len(cluster["worker"])
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        optimizer = v1.train.GradientDescentOptimizer(0.2)
        parts, gradients = [], []
        for index in range(workers):
            with on_worker(cluster, index):
                parts.append(fed())
                gradients.append(optimizer.compute_gradients(loss_of(*parts[-1])))
        mean = []
        for of_one in zip(*gradients):
            variable = of_one[0][1]
            with tf.device(variable.device):
                mean.append((tf.add_n([gradient for gradient, _ in of_one]) / workers, variable))
        train = optimizer.apply_gradients(mean)
        with v1.Session(master(cluster)) as session:
            session.run(v1.global_variables_initializer())
            for batch in batches:
                shares = np.array_split(batch, workers)
                feeds = {x: images[share] for (x, _), share in zip(parts, shares)}
                feeds.update({y: labels[share] for (_, y), share in zip(parts, shares)})
                session.run(train, feeds)


def accuracy(cluster, images, labels):
    """What the variables on the parameter servers make of images that nobody learned from."""
    with tf.Graph().as_default():
        with on_worker(cluster, 0):
            x, y = fed()
            right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(network(x), 1, output_type=tf.int32), y), tf.float32))
        with v1.Session(master(cluster), config=only(0)) as session:
            return session.run(right, {x: images, y: labels})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True, help="a JSON file: {JOB: [HOST:PORT, ...]} with the jobs ps and worker")
    parser.add_argument("--sync", action="store_true", help="one update a step, of the mean over all workers")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args(arguments)
    with open(args.cluster) as file:
        cluster = json.load(file)
    (images, labels), held_out = digits.load()
    train = train_synchronously if args.sync else train_asynchronously
    train(cluster, digits.batches(len(labels), BATCH, args.epochs, seed=1), images, labels)
    share = accuracy(cluster, *held_out)
    print(f"accuracy {100 * share:.2f} % held out")
    return share


if __name__ == "__main__":
    sys.exit(0 if main() > 0.9 else 1)
