"""A JAX job of several processes on a scenario's cluster: ours serves it, a stock run leaves that to JAX itself."""
import subprocess
import sys
from pathlib import Path

import cluster as servers

PROGRAM = Path(__file__).with_name("jax_process.py")


class Job:
    """The processes. `address` is of the task at which they meet."""

    def __init__(self, cluster, count, part):
        own = cluster.kind("jax", 0) == "stock"
        # A stock server has the task's own port.
        address = f"127.0.0.1:{servers.free_ports(1)[0]}" if own else cluster.addresses["jax"][0]
        hosts = ["--hosts"] if own else []
        self.processes = [
            subprocess.Popen([sys.executable, str(PROGRAM), address, str(count), str(index), part] + hosts,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             preexec_fn=servers.die_with_parent)
            for index in range(count)]

    def ends(self):
        """[(exit code, what it said, all that it wrote)], once all have ended."""
        outputs = [process.communicate()[0] for process in self.processes]
        for index, output in enumerate(outputs):
            print(f"--- process {index}: {self.processes[index].returncode}")
            print(output)
        said = [[line[5:] for line in output.splitlines() if line.startswith("said ")] for output in outputs]
        return list(zip((process.returncode for process in self.processes), said, outputs))


def meets(cluster, count):
    """Runs a job to its end and holds it to what JAX's own service answers."""
    pairs = [(f"from/{i}", f"word {i}") for i in range(count)]
    whole = count * (count + 1) // 2
    for index, (code, said, _) in enumerate(Job(cluster, count, "meet").ends()):
        assert code == 0, (index, code)
        assert said == [
            f"key word {(index + 1) % count}", f"directory {pairs}", "again True", "missing True", "big True",
            f"count {whole}", "late True", f"alive {list(range(count))}", f"psum {whole}", "done"], said
