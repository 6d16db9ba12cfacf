"""RunOptions.trace_level: the metadata tells of the nodes of all tasks and of what went between them; timeline.py reads it."""
import json

import numpy as np
import tensorflow as tf
from sessions import session, v1
from tensorflow.python.client import timeline

CLUSTER = {"worker": 2}


def run(cluster):
    with session(cluster.target()) as sess:
        with tf.device("/job:worker/task:1"):
            x = v1.placeholder(tf.float32, [None, 8], name="x")
            product = tf.matmul(x, x, transpose_b=True, name="product")
        with tf.device("/job:worker/task:0"):
            total = tf.reduce_sum(product, name="total")
        feed = {x: np.ones((4, 8), np.float32)}
        assert sess.run(total, feed) == 128.0
        metadata = v1.RunMetadata()
        full = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        assert sess.run(total, feed, options=full, run_metadata=metadata) == 128.0
        ran = {(node.node_name, stats.device) for stats in metadata.step_stats.dev_stats for node in stats.node_stats}
        print(sorted(ran))
        for name, task in [("product", 1), ("total", 0)]:
            assert (name, f"/job:worker/replica:0/task:{task}/device:CPU:0") in ran, name
        events = json.loads(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format(show_memory=True))
        ops = {event["args"]["op"] for event in events["traceEvents"] if "op" in event.get("args", {})}
        assert {"MatMul", "Sum"} <= ops, ops
        if cluster.kind() == "ringway":
            assert any(name == "RecvTensor" for name, _ in ran)
        plain = v1.RunMetadata()
        sess.run(total, feed, run_metadata=plain)
        assert not plain.step_stats.dev_stats, "nobody asked"
