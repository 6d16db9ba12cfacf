#!/usr/bin/env python3
"""kill.py RINGWAY [--rounds 100] [--ranks 4] [--stop] [--elastic EXAMPLE]: kills a random rank in the middle of a
collective, again and again, says how long the others took to name it, and looks for what is left behind.

By hand, not a test: it measures time. Each round of `ringway bench all-reduce` must see every survivor print an error that
names the dead rank, its host and pid, within 1 s of the signal, and the job end with an error. --stop stops the rank with
SIGSTOP instead, under a heartbeat limit of 2 s, of which it is named within 1 s more.

Everything runs in mount, IPC and network namespaces of its own (unshare: root, or a kernel that lets users make them), with empty
/dev/shm, /tmp and /run. So after each round nothing may be there: no file, no unix socket, no listening or open TCP
connection, no System V memory, queue or semaphore, and no process, since orphans become children of this one. Memory of a memfd
goes with the last process or socket that has it.

--elastic EXAMPLE (target/release/examples/elastic) kills ranks of one elastic job instead, whose survivors go on: each round
waits for the group to be whole again and counts descriptors and memory mappings of the launcher and of a rank that was
never killed, which must not grow. Exits with 1 when a round fails; prints the seed.
"""
import argparse, ctypes, os, random, re, signal, subprocess, sys, time

PRIVATE = ["/dev/shm", "/tmp", "/run"]
LIMIT_S = 1.0
HEARTBEAT_MS = 2000


def secluded(args):
    """Starts this script again where it sees no files and sockets but its own."""
    if os.environ.get("KILL_SECLUDED"):
        return
    os.environ["KILL_SECLUDED"] = "1"
    mounts = " && ".join(f"mount -t tmpfs none {place}" for place in PRIVATE)
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    shell = f'{mounts} && ip link set lo up && exec "$@"'
    os.execvp("unshare", ["unshare", *user, "--mount", "--ipc", "--net", "sh", "-c", shell, "sh", sys.executable, os.path.abspath(__file__), *args])


def adopt_orphans():
    """Processes whose parents end become children of this one: PR_SET_CHILD_SUBREAPER."""
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0) != 0:
        sys.exit("this system does not say which processes are left (PR_SET_CHILD_SUBREAPER)")


def processes():
    """Reaps those that have ended; whether any runs on."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if pid == 0:
            return ["a process of the job runs on"]


def leftovers():
    """What is there that was not before the first round, in words."""
    found = [os.path.join(path, name) for place in PRIVATE for path, folders, files in os.walk(place) for name in folders + files]
    # The user's folder of status sockets is made once, and stays: docs/settings.md, RINGWAY_RUNTIME_DIR.
    found = [path for path in found if path != f"/tmp/ringway-{os.geteuid()}"]
    for kind in ("shm", "sem", "msg"):
        found += [f"System V {kind}: {line.strip()}" for line in open(f"/proc/sysvipc/{kind}").readlines()[1:]]
    found += [f"unix socket: {line.strip()}" for line in open("/proc/net/unix").readlines()[1:]]
    for family in ("tcp", "tcp6"):
        # What no process has any more (inode 0) says goodbye by TCP's rules for a while (LAST_ACK, FIN_WAIT2, TIME_WAIT).
        rows = [line.split() for line in open(f"/proc/net/{family}").readlines()[1:]]
        found += [f"{family} socket {row[1]} in state {row[3]}" for row in rows if row[9] != "0"]
    # The last of a dead process may take the system a moment.
    deadline = time.monotonic() + LIMIT_S
    while (running := processes()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found + running


def percentiles(times):
    times = sorted(times)
    at = lambda share: times[min(len(times) - 1, int(len(times) * share))]
    return f"median {at(0.5):.3f}, 99 of 100 within {at(0.99):.3f}, worst {times[-1]:.3f}"


def jobs(args, rng):
    """A job a round, of which one rank is killed. How many rounds failed."""
    limit = LIMIT_S + (HEARTBEAT_MS / 1e3 if args.stop else 0.0)
    env = dict(os.environ, **({"RINGWAY_HEARTBEAT_TIMEOUT_MS": str(HEARTBEAT_MS)} if args.stop else {}))
    command = [args.ringway, "bench", "all-reduce", "-n", str(args.ranks), "--sizes", args.size, "--iters", "1000000"]
    times, failed, left = [], 0, 0
    for n in range(args.rounds):
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        pids = []
        for line in job.stdout:
            if m := re.search(r"rank +\d+ on \S+ pid (\d+):", line):
                pids.append(int(m[1]))
            if "(elements)" in line:
                break
        victim = rng.randrange(args.ranks)
        if len(pids) < args.ranks:
            said = job.communicate()[1]
            print(f"round {n}: the job did not begin, exit code {job.returncode}: {said.strip()}", flush=True)
            times.append(float("inf"))
            failed += 1
            continue
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(pids[victim], signal.SIGSTOP if args.stop else signal.SIGKILL)
        begun, named = time.monotonic(), {}
        for line in job.stderr:
            m = re.match(r"ringway bench: rank (\d+): rank (\d+) on host \S+ \(pid (\d+)\) was lost", line)
            if m and int(m[2]) == victim and int(m[3]) == pids[victim]:
                named[int(m[1])] = time.monotonic() - begun
        job.wait()
        job.stdout.close()
        job.stderr.close()
        told = max(named.values(), default=float("inf"))
        times.append(told)
        behind = leftovers()
        left += bool(behind)
        ok = len(named) == args.ranks - 1 and job.returncode != 0 and told <= limit and not behind
        failed += not ok
        if not ok:
            print(f"round {n}: rank {victim} {'stopped' if args.stop else 'killed'}, named by {sorted(named)} after {told:.3f} s at most, "
                  f"exit code {job.returncode}, left behind: {behind or 'nothing'}", flush=True)
    what = "stopped" if args.stop else "killed"
    print(f"{args.rounds - failed} of {args.rounds} rounds: every survivor named the {what} rank within {limit:.0f} s and nothing was left; "
          f"seconds to the last: {percentiles(times)}; rounds with something left behind: {left}")
    return failed


def held(pid):
    """Descriptors and memory mappings of a process."""
    return len(os.listdir(f"/proc/{pid}/fd")), sum(1 for _ in open(f"/proc/{pid}/maps"))


def elastic(args, rng):
    """One job, of which a rank a round is killed and started again. How many rounds failed."""
    command = [args.ringway, "run", "-n", str(args.ranks), "--min-ranks", str(args.ranks - 1), "--restarts", str(args.rounds + 1), "--", args.elastic, "0",
               "/nonexistent"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1)
    generations, kept, baseline, times, failed, last = {}, None, None, [], 0, {}
    begun, done = None, 0
    for line in job.stdout:
        m = re.search(r"generation (\d+): rank \d+ of (\d+) \(pid (\d+)\)", line)
        if not m:
            continue
        generation, size, pid = map(int, m.groups())
        pids = generations.setdefault(generation, set())
        pids.add(pid)
        if size != args.ranks or len(pids) != size or generation != max(generations):
            continue
        # The group is whole.
        if begun is not None:
            times.append(time.monotonic() - begun)
            done += 1
        kept = kept or min(pids)
        last = {"launcher": held(job.pid), f"rank of pid {kept}": held(kept)}
        # The first loss makes what later ones find made.
        if done == 1:
            baseline = last
        if baseline:
            more = {who: (baseline[who], now) for who, now in last.items() if now[0] > baseline[who][0]}
            failed += bool(more)
            if more:
                print(f"round {done}: descriptors and mappings grew: {more}", flush=True)
        if done == args.rounds:
            break
        time.sleep(rng.uniform(0.0, 0.03))
        begun = time.monotonic()
        os.kill(rng.choice(sorted(pids - {kept})), signal.SIGKILL)
        for old in [g for g in generations if g < generation]:
            del generations[old]
    job.send_signal(signal.SIGTERM)
    job.wait()
    job.stdout.close()
    behind = leftovers()
    failed += bool(behind) + (args.rounds - done)
    print(f"{done} of {args.rounds} losses: the group was whole again; seconds from the signal: {percentiles(times or [float('inf')])}; "
          f"descriptors and mappings after the first {baseline}, at the end {last}; left behind: {behind or 'nothing'}")
    return failed


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("ringway")
    ap.add_argument("--rounds", type=int, default=100)
    ap.add_argument("--ranks", type=int, default=4)
    ap.add_argument("--size", default="4M")
    ap.add_argument("--stop", action="store_true")
    ap.add_argument("--elastic", metavar="EXAMPLE")
    ap.add_argument("--seed", type=int, default=int(time.time()))
    args = ap.parse_args()
    secluded(sys.argv[1:])
    adopt_orphans()
    rng = random.Random(args.seed)
    print(f"seed {args.seed}", flush=True)
    before = leftovers()
    if before:
        sys.exit(f"not alone: {before}")
    sys.exit((elastic if args.elastic else jobs)(args, rng) > 0)


if __name__ == "__main__":
    main()
