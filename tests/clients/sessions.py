"""Sessions on a server, and the same program in a local one to compare with."""
import contextlib
import re

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


@contextlib.contextmanager
def session(target, config=None):
    """A fresh graph and a session of it at `target`; a local one when that is empty."""
    with tf.Graph().as_default() as graph, v1.Session(target, graph=graph, config=config) as sess:
        yield sess


def both(cluster, program):
    """What `program(session)` returns locally, and what it returns on the cluster."""
    with session("") as sess:
        local = program(sess)
    with session(cluster.target()) as sess:
        return local, program(sess)


def same(cluster, program, tolerance=1e-5):
    """Asserts that `program(session)` returns the same numbers on the cluster as locally. Returns them."""
    local, remote = both(cluster, program)
    tf.nest.assert_same_structure(local, remote)
    for here, there in zip(tf.nest.flatten(local), tf.nest.flatten(remote)):
        here, there = np.asarray(here), np.asarray(there)
        assert here.dtype == there.dtype, f"{there.dtype} in place of {here.dtype}"
        np.testing.assert_allclose(there, here, rtol=tolerance, atol=tolerance)
    return remote


@contextlib.contextmanager
def fails(kind, *patterns):
    """Expects exactly this error of tf.errors, with words that match each of the patterns."""
    try:
        yield
    except tf.errors.OpError as error:
        assert type(error) is kind, f"{type(error).__name__} in place of {kind.__name__}: {error}"
        print(f"{kind.__name__}: {error.message}")
        for pattern in patterns:
            assert re.search(pattern, str(error)), f"no {pattern!r} in: {error}"
        return
    raise AssertionError(f"nothing failed, in place of {kind.__name__}")
