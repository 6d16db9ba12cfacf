"""Contexts that are not there: the server says so and goes on."""
import tensorflow as tf
from remote import CPU
from sessions import fails
from wire import Fixed64, Service, message

CLUSTER = {"worker": 1}
NEVER_MADE = 4711


def run(cluster):
    service = Service(cluster.addresses["worker"][0], "tensorflow.eager.EagerService")
    never_made = (1, Fixed64(NEVER_MADE))
    for method, request in [("Enqueue", message(never_made)), ("KeepAlive", message(never_made))]:
        with fails(tf.errors.AbortedError, str(NEVER_MADE)):
            service.call(method, request)
    tf.config.experimental_connect_to_host(cluster.addresses["worker"][0])
    with tf.device(CPU.format(0)):
        assert (tf.constant(1) + 1).numpy() == 2, "the server goes on"
