"""A graph that grows between steps, with a variable that keeps its value."""
import tensorflow as tf
from sessions import session, v1

CLUSTER = {"worker": 1}


def run(cluster):
    with session(cluster.target()) as sess:
        count = v1.get_variable("count", initializer=1.0, use_resource=True)
        sess.run(count.initializer)
        result = count.read_value()
        for n in range(5):
            result = result * 2.0 + float(n)
            assert sess.run(result) == 2.0 ** (n + 1) + sum(2.0 ** (n - k) * k for k in range(n + 1))
        sess.run(count.assign_add(1.0))
        assert sess.run(count) == 2.0
