"""mirrored_process.py: one worker of MultiWorkerMirroredStrategy, by TF_CONFIG; says what it sees, a line each."""
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

STEPS = 5


def main():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    print("said replicas", strategy.num_replicas_in_sync, flush=True)
    with strategy.scope():
        weight = tf.Variable(np.zeros(3, np.float32), aggregation=tf.VariableAggregation.MEAN)

    def replica(target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weight - target) ** 2)
        weight.assign_sub(0.25 * tape.gradient(loss, weight))

    @tf.function
    def step(target):
        strategy.run(replica, args=(target,))

    for _ in range(STEPS):
        step(tf.constant([1.0, 2.0, 3.0]) * (index + 1))
    print("said weight", weight.numpy().tolist(), flush=True)


main()
