"""examples/python/parameter_server.py reaches 95 % of held-out digits, synchronous and asynchronous."""
import parameter_server
from programs import described

CLUSTER = {"ps": 2, "worker": 2}
DEADLINE_S = 120


def run(cluster):
    with described(cluster) as path:
        assert parameter_server.main(["--cluster", path]) >= 0.95
        assert parameter_server.main(["--cluster", path, "--sync"]) >= 0.95
