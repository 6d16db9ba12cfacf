"""A master of ours and a stock worker: a graph over both, with variables on each side, trained."""
import crossing

CLUSTER = {"worker": ["ringway", "stock"]}


def run(cluster):
    crossing.check(cluster)
