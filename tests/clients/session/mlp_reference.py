"""A perceptron of reference variables, as TensorFlow 1 makes them, with Adam on the digits."""
import training
from networks import perceptron
from sessions import v1

CLUSTER = {"worker": 1}
DEADLINE_S = 120


def run(cluster):
    training.as_accurate_as_local(cluster, perceptron, lambda: v1.train.AdamOptimizer(0.003), epochs=12,
                                  use_resource=False)
