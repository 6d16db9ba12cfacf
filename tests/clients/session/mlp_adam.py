"""A perceptron with Adam on the digits: as accurate as a local session makes it, within 1 %."""
import training
from networks import perceptron
from sessions import v1

CLUSTER = {"worker": 1}
DEADLINE_S = 120


def run(cluster):
    training.as_accurate_as_local(cluster, perceptron, lambda: v1.train.AdamOptimizer(0.003), epochs=12)
