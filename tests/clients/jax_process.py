"""jax_process.py ADDRESS COUNT INDEX PART [--hosts]: one process of a JAX job, which says what it sees, a line each.

Run by jax_job.py. With --hosts, process 0 hosts JAX's own service at ADDRESS; else the service is there already.
"""
import os
import signal
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax._src import distributed  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

WAIT_MS = 60_000
BIG = 16 << 20


def say(*words):
    print("said", *words, flush=True)


def meet(client, count, index):
    """Keys, of any size and twice, barriers, and a sum over all processes."""
    client.key_value_set(f"from//{index}", f"word {index}")
    say("key", client.blocking_key_value_get(f"from/{(index + 1) % count}", WAIT_MS))
    client.wait_at_barrier("all have written", WAIT_MS)
    say("directory", sorted(client.key_value_dir_get("from/")))
    # Nobody writes again before all have read.
    client.wait_at_barrier("all have read", WAIT_MS)
    try:
        client.key_value_set(f"from/{index}", "another")
    except jax.errors.JaxRuntimeError as error:
        say("again", "ALREADY_EXISTS" in str(error))
    client.key_value_set(f"from/{index}", "another", allow_overwrite=True)
    try:
        client.key_value_try_get("nobody/wrote/this")
    except jax.errors.JaxRuntimeError as error:
        say("missing", "NOT_FOUND" in str(error))
    client.key_value_increment("count", index + 1)
    if index == 0:
        client.key_value_set_bytes("big", b"\x07" * BIG)
    say("big", client.blocking_key_value_get_bytes("big", WAIT_MS) == b"\x07" * BIG)
    for _ in range(3):
        client.wait_at_barrier("the same name", WAIT_MS)
    say("count", client.key_value_try_get("count"))
    try:
        client.wait_at_barrier(f"only {index}", 1000)
    except jax.errors.JaxRuntimeError as error:
        say("late", "DEADLINE_EXCEEDED" in str(error))
    say("alive", sorted(client.get_live_nodes(list(range(count)))))
    total(index)


def total(index):
    summed = jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")
    say("psum", int(summed(jnp.full((jax.local_device_count(),), index + 1))[0]))


def lose(client, count, index):
    """The last process kills itself; the others wait for it."""
    total(index)
    client.wait_at_barrier("together", WAIT_MS)
    say("waits")
    if index == count - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    client.wait_at_barrier("in vain", 10 * WAIT_MS)


def preempt(client, count, index):
    """Process 0 is told to end; all come to the same step to stop at."""
    for step in range(10_000):
        if index == 0 and step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        total_of_step = multihost_utils.process_allgather(jnp.array([step]))
        assert int(total_of_step.sum()) == step * count, total_of_step
        if multihost_utils.reached_preemption_sync_point(step):
            say("stops at", step)
            return
    raise AssertionError("nobody was told")


def main():
    address, count, index, part = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    place = {} if "--hosts" in sys.argv else {"coordinator_bind_address": "127.0.0.1:0"}
    jax.distributed.initialize(
        coordinator_address=address, num_processes=count, process_id=index, **place)
    {"meet": meet, "lose": lose, "preempt": preempt}[part](distributed.global_state.client, count, index)
    jax.distributed.shutdown()
    say("done")


main()
