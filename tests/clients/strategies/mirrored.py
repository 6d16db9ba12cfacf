"""examples/python/mirrored.py reaches 95 % of held-out digits, and all workers end with the same numbers."""
import mirrored
from programs import described

CLUSTER = {"worker": 2}
DEADLINE_S = 120


def run(cluster):
    with described(cluster) as path:
        assert mirrored.main(["--cluster", path]) >= 0.95
