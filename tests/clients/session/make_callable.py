"""Steps prepared once: Session.make_callable, and the one with CallableOptions that has calls of its own."""
import numpy as np
import tensorflow as tf
from sessions import session, v1
from tensorflow.core.protobuf import config_pb2

CLUSTER = {"worker": 1}


def run(cluster):
    with session(cluster.target()) as sess:
        x = v1.placeholder(tf.float32, [None], name="x")
        y = tf.identity(x * 2.0, name="y")
        count = v1.get_variable("count", initializer=0, use_resource=True)
        more = count.assign_add(1).op
        sess.run(v1.global_variables_initializer())
        call = sess.make_callable([y, more], [x])
        assert call([1.0, 2.0])[0].tolist() == [2.0, 4.0]
        options = config_pb2.CallableOptions(feed=[x.name], fetch=[y.name], target=[more.name])
        made = sess._make_callable_from_options(options)
        for n in range(3):
            assert made(np.array([n], np.float32))[0].tolist() == [2.0 * n]
        del made  # releases it on the server
        assert sess.run(count) == 4
