"""MultiWorkerMirroredStrategy of two unmodified workers, whose coordination service is ours: steps, and the same end."""
import json
import os
import subprocess
import sys
from pathlib import Path

import cluster as servers

CLUSTER = {"ps": 1, "worker": ["outside"] * 2}
SERVE = ["--coordinate", "worker"]
DEADLINE_S = 120
PROGRAM = Path(__file__).parents[1] / "mirrored_process.py"


def start(cluster, index):
    """A worker; TensorFlow takes ps:0 of a cluster as the leader of its coordination."""
    # A stock run is led by the first worker, as it is without any other.
    jobs = {"worker": cluster.addresses["worker"]} if cluster.kind("ps") == "stock" else cluster.addresses
    description = {"cluster": jobs, "task": {"type": "worker", "index": index}}
    return subprocess.Popen([sys.executable, str(PROGRAM)], env=dict(os.environ, TF_CONFIG=json.dumps(description)),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            preexec_fn=servers.die_with_parent)


def run(cluster):
    processes = [start(cluster, index) for index in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    print(*outputs, sep="\n---\n")
    # Each step halves the distance to the mean of both targets.
    expected = [1.5 * (index + 1) * (1 - 0.5 ** 5) for index in range(3)]
    for process, output in zip(processes, outputs):
        said = [line for line in output.splitlines() if line.startswith("said ")]
        assert process.returncode == 0 and said == ["said replicas 2", f"said weight {expected}"], said
