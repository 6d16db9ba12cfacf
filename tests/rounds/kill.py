#!/usr/bin/env python3
"""kill.py RINGWAY [--rounds 100] [--ranks 4] [--stop]: kills a random rank in the middle of `ringway bench
all-reduce`, again and again, and says how long the others took to name it.

By hand, not a test: it measures time. Each round must see every survivor print an error that names the dead rank,
its host and pid, and exit with 1. --stop stops the rank with SIGSTOP instead, under a heartbeat limit of 2 s.
The time is from the signal to the last survivor's line. Exits with 1 when a round fails; prints the seed.
"""
import argparse, os, random, re, signal, subprocess, sys, time

ap = argparse.ArgumentParser()
ap.add_argument("ringway"); ap.add_argument("--rounds", type=int, default=100); ap.add_argument("--ranks", type=int, default=4)
ap.add_argument("--size", default="4M"); ap.add_argument("--stop", action="store_true"); ap.add_argument("--seed", type=int, default=int(time.time()))
A = ap.parse_args()
rng = random.Random(A.seed)
print(f"seed {A.seed}")
times, failed = [], 0
for n in range(A.rounds):
    env = dict(os.environ, **({"RINGWAY_HEARTBEAT_TIMEOUT_MS": "2000"} if A.stop else {}))
    p = subprocess.Popen([A.ringway, "bench", "all-reduce", "-n", str(A.ranks), "--sizes", A.size, "--iters", "1000000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    pids = []
    for line in p.stdout:
        if m := re.search(r"rank +\d+ on \S+ pid (\d+):", line): pids.append(int(m[1]))
        if "(elements)" in line: break
    victim = rng.randrange(A.ranks)
    time.sleep(rng.uniform(0.0, 0.15))
    os.kill(pids[victim], signal.SIGSTOP if A.stop else signal.SIGKILL)
    t0, named = time.monotonic(), {}
    for line in p.stderr:
        m = re.match(r"ringway bench: rank (\d+): rank (\d+) on host \S+ \(pid (\d+)\) was lost", line)
        if m and int(m[2]) == victim and int(m[3]) == pids[victim]: named[int(m[1])] = time.monotonic() - t0
    p.wait()
    ok = len(named) == A.ranks - 1 and p.returncode != 0
    failed += not ok
    times.append(max(named.values(), default=float("inf")))
    if not ok: print(f"round {n}: rank {victim} killed, named by {sorted(named)}, exit code {p.returncode}")
times.sort()
print(f"{A.rounds - failed} of {A.rounds} rounds: every survivor named the {'stopped' if A.stop else 'killed'} rank; seconds to the last: "
      f"median {times[len(times) // 2]:.3f}, worst {times[-1]:.3f}")
sys.exit(failed > 0)
