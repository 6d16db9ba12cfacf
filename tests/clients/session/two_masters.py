"""Two masters over the same tasks: they share variables by name, and neither minds when the other's session ends."""
import tensorflow as tf
from sessions import session, v1

CLUSTER = {"ps": 1, "worker": 2}


def counter():
    with tf.device("/job:ps/task:0"):
        count = v1.get_variable("count", initializer=0, use_resource=True)
    return count, count.assign_add(1)


def run(cluster):
    with session(cluster.target("worker", 0)) as first:
        count, more = counter()
        first.run(count.initializer)
        first.run(more)
        with session(cluster.target("worker", 1)) as second:
            same, again = counter()
            assert second.run(same) == 1
            second.run(again)
            assert first.run(count) == 2
        assert first.run(more) == 3
    with session(cluster.target("ps")) as third:
        assert third.run(counter()[0]) == 3, "variables outlive the sessions that made them"
