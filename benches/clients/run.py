#!/usr/bin/env python3
"""run.py [--program PATH] [--rounds 7] [--only CASE]: one TensorFlow client, our servers beside TensorFlow's own.

By hand: it measures time. Both clusters are up all the while and take turns, so that what changes on the machine
changes for both. Each figure is the median over the rounds of the best step of a round; the ratio is the stock
server's time through ours (above 1 we are faster).

  fetch      64 MiB from a variable of one task to an operation of another, which looks at one element of them
  empty      one constant fetched: of the master's own task, and of another
  thousand   1,000 additions on four tasks, some edges between them: the first step of a session, which places,
             cuts up and registers the graph; a step after that; and what one more operation adds to it

Needs the virtual environment of tests/clients/lane.sh, and a program made with `cargo build --release`:
  ~/.cache/ringway-clients/*/bin/python benches/clients/run.py
"""
import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/clients")]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf  # noqa: E402

import cluster  # noqa: E402

v1 = tf.compat.v1
KINDS = ["ringway", "stock"]
ELEMENTS = 16 << 20  # of 4 bytes: 64 MiB
TASKS = 4
LONG, SHORT = 250, 10  # additions on each task


def on(task):
    return tf.device(f"/job:worker/task:{task}")


class Session:
    """A session on one cluster, of a graph that `build()` makes; what that returns is fetched by step()."""

    def __init__(self, target, build):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.fetch, self.feeds, start = build()
        self.session = v1.Session(target, graph=self.graph)
        if start is not None:
            self.session.run(start)

    def step(self):
        """Seconds of one step."""
        began = time.perf_counter()
        self.session.run(self.fetch, self.feeds)
        return time.perf_counter() - began

    def best(self, steps):
        return min(self.step() for _ in range(steps))


def fetch():
    with on(1):
        held = v1.get_variable("held", initializer=lambda: tf.ones([ELEMENTS]), use_resource=True)
    with on(0):
        return held[ELEMENTS // 2:ELEMENTS // 2 + 1], {}, held.initializer


def constant(task):
    def build():
        with on(task):
            return tf.constant(1.0), {}, None
    return build


def additions(each):
    """`each` additions on every task, one after the other on a task, from one feed to one sum."""
    def build():
        with on(0):
            fed = v1.placeholder(tf.float32, [])
        ends = []
        for task in range(TASKS):
            with on(task):
                one, two = fed, fed
                for _ in range(each):
                    one, two = tf.add(one, two), one
                ends.append(one)
        with on(0):
            return tf.add_n(ends), {fed: 1e-30}, None
    return build


def compare(targets, build, rounds, steps):
    """{kind: seconds of the first step, of the steps after it}."""
    firsts, bests = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}
    for number in range(rounds):
        order = KINDS if number % 2 == 0 else KINDS[::-1]
        for kind in order:
            made = Session(targets[kind], build)
            firsts[kind].append(made.step())
            bests[kind].append(made.best(steps))
            made.session.close()
    return tuple({kind: statistics.median(of[kind]) for kind in KINDS} for of in (firsts, bests))


def row(what, seconds, scale, unit):
    ours, stock = seconds["ringway"], seconds["stock"]
    print(f"{what:48} {ours * scale:10.2f} {stock * scale:10.2f} {unit:3} {stock / ours:8.2f}", flush=True)


def measure(targets, rounds, only):
    print(f"{'':48} {'ringway':>10} {'stock':>10} {'':3} {'ratio':>8}")
    if only in (None, "fetch"):
        _, seconds = compare(targets, fetch, rounds, steps=10)
        row("fetch of 64 MiB between two tasks", seconds, 1e3, "ms")
        print("  " + ", ".join(f"{kind} {ELEMENTS * 4 / seconds[kind] / 1e9:.2f} GB/s" for kind in KINDS))
    if only in (None, "empty"):
        for task, whose in [(0, "the master's task"), (1, "another task")]:
            _, seconds = compare(targets, constant(task), rounds, steps=300)
            row(f"empty step, a constant of {whose}", seconds, 1e6, "us")
    if only in (None, "thousand"):
        first, long = compare(targets, additions(LONG), rounds, steps=50)
        _, short = compare(targets, additions(SHORT), rounds, steps=50)
        row("1,000 additions on 4 tasks: the first step", first, 1e3, "ms")
        row("1,000 additions on 4 tasks: a step", long, 1e3, "ms")
        each = {kind: max(long[kind] - short[kind], 1e-9) / (TASKS * (LONG - SHORT)) for kind in KINDS}
        row("one more addition", each, 1e6, "us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "target/release/ringway"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["fetch", "empty", "thousand"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringway-clients-") as logs:
        nurseries = {}
        try:
            for kind in KINDS:
                (Path(logs) / kind).mkdir()
                nurseries[kind] = cluster.Nursery({"worker": [kind] * TASKS}, args.program, Path(logs) / kind)
                for task in nurseries[kind].tasks():
                    nurseries[kind].start(*task)
            targets = {}
            for kind, nursery in nurseries.items():
                seen = cluster.Cluster(nursery.layout, nursery.addresses, None)
                seen.wait_for_all()
                targets[kind] = seen.target()
            measure(targets, args.rounds, args.only)
        finally:
            for nursery in nurseries.values():
                for wrong in nursery.close():
                    print(wrong, file=sys.stderr)


if __name__ == "__main__":
    main()
