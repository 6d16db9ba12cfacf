"""kill -9 of one of three processes of JAX: the others end and say which."""
import signal

import jax_job

CLUSTER = {"jax": 3}
DEADLINE_S = 180  # JAX's own service finds out by heartbeats, after 100 s


def run(cluster):
    *others, last = jax_job.Job(cluster, 3, "lose").ends()
    assert last[0] == -signal.SIGKILL, last
    for code, said, wrote in others:
        assert code != 0 and "waits" in said and "done" not in said, (code, said)
        if cluster.kind("jax") == "ringway":
            assert "task:2" in wrote, wrote
