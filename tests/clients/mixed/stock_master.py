"""A stock master and a worker of ours: a graph over both, with variables on each side, trained."""
import crossing

CLUSTER = {"worker": ["stock", "ringway"]}


def run(cluster):
    crossing.check(cluster)
