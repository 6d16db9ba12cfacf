"""Two processes of JAX: keys, a key of 16 MiB, barriers, a psum, the end."""
import jax_job

CLUSTER = {"jax": 2}
DEADLINE_S = 120


def run(cluster):
    jax_job.meets(cluster, 2)
