#!/usr/bin/env python3
"""scale.py RINGWAY [--ranks 2,4,8,16,32] [--net shm|tcp] [--algo ALGO]: what a rank of a job of so many holds on this host: descriptors, connections,
memory, threads; and how long the job takes from its start until rank 0 has heard of all.

Each job is `ringway bench all-reduce -n N` of 8 B, looked at while it measures. Memory is that of the rank that has most:
its own (RssAnon) and what it shares with others (RssShmem). Connections are descriptors of TCP or unix sockets.
"""
import argparse, os, re, statistics, subprocess, time


def status(pid):
    fields = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
    kib = lambda name: int(fields[name].split()[0])
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    return len(links), sum(link.startswith("socket:") for link in links), kib("RssAnon"), kib("RssShmem"), int(fields["Threads"])


def job(args, ranks):
    env = {**os.environ, **({"RINGWAY_NET": args.net}), **({"RINGWAY_ALGO": args.algo} if args.algo else {})}
    begun = time.monotonic()
    process = subprocess.Popen([args.ringway, "bench", "all-reduce", "-n", str(ranks), "--sizes", "8", "--iters", "100000000"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    pids = []
    for line in process.stdout:
        if m := re.search(r"rank +\d+ on \S+ pid (\d+):", line):
            pids.append(int(m[1]))
        if "(elements)" in line:
            break
    ready = time.monotonic() - begun
    # Connections are made when they are first used.
    time.sleep(0.3)
    found = [status(pid) for pid in pids]
    process.terminate()
    process.communicate()
    return ready, [max(column) for column in zip(*found)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("ringway")
    ap.add_argument("--ranks", default="2,4,8,16,32")
    ap.add_argument("--net", default="shm", choices=["shm", "tcp"])
    ap.add_argument("--algo")
    ap.add_argument("--rounds", type=int, default=3)
    args = ap.parse_args()
    print("| ranks | start until all are heard of (ms) | descriptors | of them sockets | own memory (KiB) | shared (KiB) | threads |\n|---|---|---|---|---|---|---|")
    for ranks in map(int, args.ranks.split(",")):
        runs = [job(args, ranks) for _ in range(args.rounds)]
        time_ms = statistics.median(run[0] for run in runs) * 1e3
        columns = [statistics.median(column) for column in zip(*(run[1] for run in runs))]
        print(f"| {ranks} | {time_ms:.0f} | " + " | ".join(f"{column:.0f}" for column in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
