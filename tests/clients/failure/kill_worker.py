"""kill -9 of a worker in mid-step: the error names it; after its restart the next step works."""
import threading
import time

import tensorflow as tf
from sessions import session, v1

CLUSTER = {"worker": 2}
LOST = "/job:worker/replica:0/task:1"


def build():
    """A counter on the second task, a step that counts for ever, and one that asks how far it is."""
    with tf.device("/job:worker/task:1"):
        count = v1.get_variable("count", initializer=0, use_resource=True)

        def more(i):
            with tf.control_dependencies([count.assign_add(1)]):
                return i + 1
        endless = v1.while_loop(lambda i: i >= 0, more, [tf.constant(0)])
    with tf.device("/job:worker/task:0"):
        return count, endless + 1


def run(cluster):
    v1.disable_control_flow_v2()
    with session(cluster.target()) as sess:
        count, endless = build()
        sess.run(v1.global_variables_initializer())
        failed = []

        def step():
            try:
                sess.run(endless)
            except tf.errors.OpError as error:
                failed.append((time.monotonic(), error))
        running = threading.Thread(target=step)
        running.start()
        while sess.run(count) == 0:
            pass
        cluster.kill("worker", 1)
        killed = time.monotonic()
        running.join()
        at, error = failed[0]
        print(f"{type(error).__name__} after {at - killed:.3f} s: {error.message}")
        assert isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)), error
        cluster.start("worker", 1)
        if cluster.kind() == "ringway":
            assert LOST in error.message, error.message
            initialised(sess, count)
            return
    # A stock session is of no more use; a new one is.
    with session(cluster.target()) as sess:
        count, _ = build()
        initialised(sess, count)


def initialised(sess, count):
    """A step works, once the variables are initialised on the new worker."""
    sess.run(v1.global_variables_initializer())
    assert sess.run(count) == 0
