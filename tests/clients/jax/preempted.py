"""SIGTERM to one of two processes of JAX: both stop at the same step, before which all have time to save."""
import jax_job

CLUSTER = {"jax": 2}
DEADLINE_S = 120


def run(cluster):
    ends = jax_job.Job(cluster, 2, "preempt").ends()
    stops = [said[-2] for _, said, _ in ends]
    assert all(code == 0 and said[-1] == "done" for code, said, _ in ends), ends
    assert stops[0] == stops[1] and stops[0].startswith("stops at "), stops
