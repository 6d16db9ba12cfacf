"""examples/python/parameter_server.py, asynchronous, survives the death of a worker and reaches 95 %."""
import threading

import parameter_server
from programs import described
from sessions import session, v1

CLUSTER = {"ps": 1, "worker": 3}
DEADLINE_S = 120


def run(cluster):
    with described(cluster) as path:
        reached = []
        training = threading.Thread(target=lambda: reached.append(parameter_server.main(["--cluster", path])))
        training.start()
        wait_until_it_learns(cluster, training)
        cluster.kill("worker", 2)
        training.join()
        assert reached and reached[0] >= 0.95, reached


def wait_until_it_learns(cluster, training):
    """Returns when an update has reached the parameter server: a bias, zero at first, is another number."""
    with session(cluster.target("ps"), v1.ConfigProto(device_filters=["/job:ps"])) as sess:
        with v1.variable_scope("logits", use_resource=True):
            bias = v1.get_variable("bias", [10], initializer=v1.zeros_initializer())
        set_already = v1.is_variable_initialized(bias)
        while training.is_alive():
            if sess.run(set_already) and sess.run(bias).any():
                return
