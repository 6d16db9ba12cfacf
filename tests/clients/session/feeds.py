"""Feeds and fetches: all the common types, scalars, nothing in a dimension, a fed intermediate result, several."""
import numpy as np
import tensorflow as tf
from sessions import session, v1

CLUSTER = {"worker": 1}


def run(cluster):
    with session(cluster.target()) as sess:
        for dtype in [np.float32, np.float64, np.int32, np.int64]:
            x, y = v1.placeholder(dtype), v1.placeholder(dtype, [None, 3])
            both, total = x + y, tf.reduce_sum(x + y)
            fed = {x: np.array(2, dtype), y: np.arange(6, dtype=dtype).reshape(2, 3)}
            result, summed, back = sess.run([both, total, y], fed)
            assert result.dtype == dtype and result.tolist() == [[2, 3, 4], [5, 6, 7]]
            assert summed == 27 and summed.shape == () and back.tolist() == fed[y].tolist()
            empty = sess.run(both, {x: np.array(1, dtype), y: np.zeros((0, 3), dtype)})
            assert empty.shape == (0, 3)
        flag = v1.placeholder(tf.bool, [2])
        assert sess.run(tf.logical_not(flag), {flag: [True, False]}).tolist() == [False, True]
        inner = tf.constant(3.0, name="inner")
        outer = inner * 2.0
        assert sess.run(outer) == 6.0
        # In this order: a stock master takes a step that fetches outer and inner for one that fetches outer and
        # feeds inner, when it has seen that one before.
        assert sess.run({"a": outer, "b": [inner, inner]}) == {"a": 6.0, "b": [3.0, 3.0]}
        assert sess.run(outer + 1.0, {inner: 5.0}) == 11.0, "a fed tensor replaces what the graph computes"
        large = np.random.default_rng(1).random((512, 1024), np.float32)
        matrix = v1.placeholder(tf.float32)
        assert (sess.run(tf.identity(matrix), {matrix: large}) == large).all()
