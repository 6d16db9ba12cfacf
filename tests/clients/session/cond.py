"""Conditions of TensorFlow 1 (Switch, Merge): either branch, only its side effects, and its gradient."""
import tensorflow as tf
from sessions import same, v1

CLUSTER = {"worker": 1}


def program(sess):
    flag, x = v1.placeholder(tf.bool, []), v1.placeholder(tf.float32, [])
    yes = v1.get_variable("yes", initializer=0, use_resource=True)
    no = v1.get_variable("no", initializer=0, use_resource=True)
    chosen = v1.cond(flag, lambda: x * 3.0, lambda: tf.square(x))
    slope = tf.gradients(chosen, x)[0]
    count = v1.cond(flag, lambda: yes.assign_add(1).op, lambda: no.assign_add(1).op)
    case = v1.case([(x < 0.0, lambda: tf.constant(-1)), (x > 0.0, lambda: tf.constant(1))], default=lambda: tf.constant(0))
    sess.run(v1.global_variables_initializer())
    results = [sess.run([chosen, slope], {flag: f, x: v}) for f in [True, False] for v in [2.0, -5.0]]
    for each in [True, True, False]:
        sess.run(count, {flag: each})
    return results, sess.run([yes, no]), [sess.run(case, {x: v}) for v in [-2.0, 0.0, 2.0]]


def run(cluster):
    v1.disable_control_flow_v2()
    _, counts, cases = same(cluster, program)
    assert counts == [2, 1] and cases == [-1, 0, 1]
