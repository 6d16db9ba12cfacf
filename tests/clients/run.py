#!/usr/bin/env python3
"""run.py [--against ringway|stock] [--program PATH] [--keep] [SCENARIO...]: stock TensorFlow and JAX clients against servers.

A scenario is a file such as session/matmul.py with
  CLUSTER     {job: number of tasks}, or {job: [kind of each task]} with the kinds stock, ringway, tested and outside
  run(c)      what is done and expected; `c` is a cluster.Cluster whose servers answer
  SERVE       flags for `ringway serve`, if any
  DEADLINE_S  seconds for all of it; 60 when it is not given
Each runs in a process of its own, with servers of its own, whose logs are kept and shown when it fails.
--against stock replaces every server by TensorFlow's own: what a scenario expects is so known to be what stock does.
"""
import argparse
import faulthandler
import importlib.util
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

HERE = Path(__file__).resolve().parent
ROOMS = ["session", "mixed", "eager", "failure", "strategies", "jax"]
DEADLINE_S = 60
TAIL_LINES = 30
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples/python")]

import tensorflow as tf  # noqa: E402,F401  what is imported here is not imported by every scenario

import cluster  # noqa: E402


def scenarios(wanted):
    """The files to run, all or those named: session/matmul, or session for the whole room."""
    found = [path for room in ROOMS for path in sorted((HERE / room).glob("*.py"))]
    names = {str(path.relative_to(HERE).with_suffix("")): path for path in found}
    if not wanted:
        return names
    chosen = {name: path for name, path in names.items() if name in wanted or name.split("/")[0] in wanted}
    for each in wanted:
        if not any(name == each or name.startswith(each + "/") for name in chosen):
            sys.exit(f"run.py: no scenario {each}; there are {', '.join(names)}")
    return chosen


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layout(declared, against):
    """{job: [stock or ringway, ...]} of a CLUSTER, in a run against that kind."""
    def kind(each):
        if each == "outside":
            return each
        return against if each == "tested" or against == "stock" else each
    lists = {job: ["tested"] * n if isinstance(n, int) else n for job, n in declared.items()}
    return {job: [kind(each) for each in kinds] for job, kinds in lists.items()}


def scenario(module, seen, deadline_s, log):
    """The child: runs it, writes to its log, ends with 0 when all was as expected."""
    cluster.die_with_parent()
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.dump_traceback_later(max(deadline_s - 1, 1))
    code = 1
    try:
        seen.wait_for_all()
        module.run(seen)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_one(path, against, program, logs):
    """Runs a scenario. Returns what is wrong, as a list of lines; it is empty when nothing is."""
    module = load(path)
    deadline_s = getattr(module, "DEADLINE_S", DEADLINE_S)
    flags = getattr(module, "SERVE", [])
    nursery = cluster.Nursery(layout(module.CLUSTER, against), program, logs, flags)
    here, there = multiprocessing.Pipe()
    wrong = []
    try:
        for task in nursery.tasks():
            nursery.start(*task)
        seen = cluster.Cluster(nursery.layout, nursery.addresses, there)
        pid = os.fork()
        if pid == 0:
            scenario(module, seen, deadline_s, logs / "scenario.log")
        wrong += attend(nursery, here, pid, deadline_s)
    finally:
        wrong += nursery.close()
    return wrong


def attend(nursery, pipe, pid, deadline_s):
    """Answers the scenario until it ends or its time does."""
    deadline = time.monotonic() + deadline_s
    end = os.pidfd_open(pid)
    try:
        while True:
            ready = wait([pipe, end], max(deadline - time.monotonic(), 0))
            if pipe in ready:
                pipe.send(nursery.answer(pipe.recv()))
            elif ready:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                return [] if code == 0 else [f"failed ({code})"]
            else:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return [f"not done after {deadline_s} s"]
    finally:
        os.close(end)


def show(logs):
    for log in sorted(logs.glob("*.log")):
        lines = [line for line in log.read_text(errors="replace").splitlines() if "oneDNN custom" not in line]
        lines = [line for line in lines if "before absl::InitializeLog" not in line]
        print(f"    --- {log.name}")
        for line in lines[-TAIL_LINES:]:
            print(f"    {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["ringway", "stock"], default="ringway")
    parser.add_argument("--program", default=str(HERE.parents[1] / "target/release/ringway"))
    parser.add_argument("--keep", action="store_true", help="keep the logs of scenarios that pass, too")
    parser.add_argument("scenario", nargs="*")
    args = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="ringway-clients-"))
    failed, began = [], time.monotonic()
    for name, path in scenarios(args.scenario).items():
        place = logs / name.replace("/", "-")
        place.mkdir()
        start = time.monotonic()
        wrong = run_one(path, args.against, args.program, place)
        print(f"{name:40} {'ok' if not wrong else 'FAILED: ' + '; '.join(wrong)}"
              f"  {time.monotonic() - start:.1f} s", flush=True)
        if wrong:
            failed.append(name)
            show(place)
        elif not args.keep:
            shutil.rmtree(place)
    print(f"{len(failed)} failed against {args.against}, {time.monotonic() - began:.0f} s"
          + (f"; logs in {logs}" if failed or args.keep else ""))
    if not failed and not args.keep:
        shutil.rmtree(logs)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
