#!/usr/bin/env python3
"""bench_ringway.py RINGWAY RANKS [args of bench_mpi.c]: ringway bench, in the peers' CSV.

Called by run-peers.sh for the ringway-* peers. `ringway bench` measures as bench_mpi.c does: each iteration
behind a barrier, its time the largest over the ranks, results verified before and after. A ping-pong is that of `ringway bench
p2p --only latency`: half a round trip, the median. A wrong element or a failed rank ends the run with an error. cpu_us, lilo_us
and others_pct are not measured and given as 0; the latter keeps every round in analyze.py (rounds are judged by the
peers' own others_pct).

--wrap "COMMAND --rank {rank}" starts each rank by itself behind that command, on "hosts" of which rank 0's is at --master.
"""
import argparse, csv, os, secrets, subprocess, sys

OPS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
       "broadcast": "broadcast", "all_to_all": "all-to-all", "pingpong": "p2p"}


def arguments():
    ap = argparse.ArgumentParser()
    ap.add_argument("ringway")
    ap.add_argument("ranks", type=int)
    ap.add_argument("--impl", default="ringway")
    ap.add_argument("--transport", default="tcp")
    ap.add_argument("--round", default="0")
    ap.add_argument("--ops", default=",".join(OPS))
    ap.add_argument("--sizes")
    ap.add_argument("--budget-ms", default="150")
    ap.add_argument("--min", default="8")
    ap.add_argument("--max", default="64M")
    ap.add_argument("--step", default="4")
    ap.add_argument("--plain", action="store_true", help="buffers that are the caller's own")
    ap.add_argument("--wrap")
    ap.add_argument("--master")
    return ap.parse_known_args()[0]


def measured(args, op):
    """The CSV of one operation, and the exit code."""
    sizes = ["--sizes", args.sizes] if args.sizes else ["-b", args.min, "-e", args.max, "-f", args.step]
    command = [args.ringway, "bench", OPS[op], "--csv", "--budget-ms", args.budget_ms, *sizes]
    command += ["--only", "latency"] if op == "pingpong" else ["--plain"] if args.plain else []
    if not args.wrap:
        command += [] if op == "pingpong" else ["-n", str(args.ranks)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        return done.stdout, done.returncode
    # The service listens beyond its host, so whoever takes part says the job's token.
    common = {"RINGWAY_WORLD_SIZE": str(args.ranks), "RINGWAY_COORDINATOR": args.master, "RINGWAY_TOKEN": secrets.token_hex(16)}
    ranks = []
    for rank in range(args.ranks):
        env = {**os.environ, **common, "RINGWAY_RANK": str(rank)}
        ranks.append(subprocess.Popen(args.wrap.replace("{rank}", str(rank)).split() + command, env=env,
                                      stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True))
    told = ranks[0].communicate()[0]
    return told, max(rank.wait() for rank in ranks)


def main():
    args = arguments()
    for op in args.ops.split(","):
        if op not in OPS or (op == "pingpong" and args.ranks != 2):
            continue
        told, code = measured(args, op)
        for row in csv.DictReader(told.splitlines()):
            if row["wrong"] != "0":
                sys.exit(f"{op} of {row['size_bytes']} B: {row['wrong']} wrong elements or bytes")
            size = row["size_bytes"]
            if op == "pingpong":
                us = float(row["typical_us"])
                times = [row["round_trips"], row["typical_us"], row["p99_us"], *[f"{int(size) / us / 1e3:.4f}"] * 2, row["min_us"]]
            else:
                times = [row["iterations"], row["p50_us"], row["p99_us"], row["algbw_gb_s"], row["busbw_gb_s"], row["min_us"]]
            print(",".join([args.impl, args.transport, op, str(args.ranks), size, *times, "0", "0", args.round, "0"]), flush=True)
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
