"""Servers of a cluster, stock and ours: the runner's side, which starts them (Nursery), and the scenario's (Cluster).
Tasks of the kind "outside" are the scenario's own to start.

The runner has imported TensorFlow and run nothing of it, so that a stock server is a fork of it and starts in a
tenth of a second. A scenario is another fork; it has threads by then, and asks the runner for new servers.
"""
import ctypes
import json
import os
import random
import select
import signal
import socket
import subprocess
from pathlib import Path

import grpc
import tensorflow as tf

ANSWER_S = 20  # a server that does not answer within this is a failure
GRACE_MS = 2000  # a server of ours that is told to end waits so long for tasks that are connected
END_S = 10  # a server of ours that has not ended by SIGTERM within this is a failure
PR_SET_PDEATHSIG = 1


def die_with_parent():
    """Called in a child: it is killed when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count):
    """Ports that no one listens on, below the range from which outgoing connections take theirs."""
    held = []
    while len(held) < count:
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", random.randrange(15000, 32000)))
            held.append(candidate)
        except OSError:
            candidate.close()
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Nursery:
    """Starts and ends the servers of one scenario. `layout` is {job: [kind of task 0, ...]}."""

    def __init__(self, layout, program, logs, flags=()):
        self.layout, self.program, self.logs, self.flags = layout, program, Path(logs), list(flags)
        ports = iter(free_ports(sum(len(kinds) for kinds in layout.values())))
        self.addresses = {job: [f"127.0.0.1:{next(ports)}" for _ in kinds] for job, kinds in layout.items()}
        self.pids = {}
        self.lives = {}

    def tasks(self):
        return [(job, index) for job, kinds in self.layout.items() for index, kind in enumerate(kinds)
                if kind != "outside"]

    def log(self, job, index):
        """Where the present life of a task writes."""
        return self.logs / f"{job}-{index}.{self.lives[job, index]}.log"

    def start(self, job, index):
        self.lives[job, index] = self.lives.get((job, index), -1) + 1
        start = self._start_stock if self.layout[job][index] == "stock" else self._start_ringway
        with open(self.log(job, index), "wb") as log:
            self.pids[job, index] = start(job, index, log)

    def _start_stock(self, job, index, log):
        pid = os.fork()
        if pid:
            return pid
        try:
            die_with_parent()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            tf.distribute.Server(self.addresses, job, index, config=self._stock_config()).join()
        finally:
            os._exit(1)

    def _stock_config(self):
        """The first worker leads collectives, as it does among ours without being told."""
        config = tf.compat.v1.ConfigProto()
        config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
        return config

    def _start_ringway(self, job, index, log):
        command = [self.program, "serve", "--cluster", json.dumps(self.addresses), "--job", job, "--task", str(index)]
        command += self.flags
        environment = dict(os.environ, RINGWAY_PREEMPTION_GRACE_MS=str(GRACE_MS))
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent).pid

    def kill(self, job, index):
        os.kill(self.pids[job, index], signal.SIGKILL)
        os.waitpid(self.pids.pop((job, index)), 0)

    def stop(self, job, index):
        """Ends a server by SIGTERM, which a stock one dies of and ours obeys. Returns what is wrong, or None."""
        pid = self.pids.pop((job, index))
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return f"{job}:{index} had ended by itself: {os.waitstatus_to_exitcode(status)}"
        os.kill(pid, signal.SIGTERM)
        code = wait_for_end(pid, END_S)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"{job}:{index} had not ended {END_S} s after SIGTERM"
        if self.layout[job][index] == "ringway" and code != 0:
            return f"{job}:{index} ended with {code} after SIGTERM"
        return None

    def answer(self, request):
        """Does what the scenario asks for: (what, job, index)."""
        what, job, index = request
        done = {"start": self.start, "kill": self.kill, "stop": self.stop}[what](job, index)
        return done, str(self.log(job, index))

    def close(self):
        """Ends what is left. Returns what is wrong with it."""
        return [wrong for task in list(self.pids) if (wrong := self.stop(*task))]


def wait_for_end(pid, seconds):
    """The exit code of a child, or None when it has not ended by then."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], seconds)[0]:
            return None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(fd)


class Cluster:
    """What a scenario sees of its servers."""

    def __init__(self, layout, addresses, pipe):
        self.layout, self.addresses, self.pipe = layout, addresses, pipe

    def target(self, job="worker", index=0):
        return f"grpc://{self.addresses[job][index]}"

    def kind(self, job="worker", index=0):
        return self.layout[job][index]

    def wait(self, job, index):
        """Returns when the task answers."""
        with grpc.insecure_channel(self.addresses[job][index]) as channel:
            ask = channel.unary_unary("/tensorflow.WorkerService/GetStatus")
            ask(b"", timeout=ANSWER_S, wait_for_ready=True)

    def wait_for_all(self):
        for job, kinds in self.layout.items():
            for index, kind in enumerate(kinds):
                if kind != "outside":
                    self.wait(job, index)

    def start(self, job, index):
        self._ask("start", job, index)
        self.wait(job, index)

    def kill(self, job, index):
        """kill -9."""
        self._ask("kill", job, index)

    def stop(self, job, index):
        """Ends a server in order and returns what it wrote."""
        wrong, log = self._ask("stop", job, index)
        assert wrong is None, wrong
        return Path(log).read_text()

    def _ask(self, what, job, index):
        self.pipe.send((what, job, index))
        return self.pipe.recv()
