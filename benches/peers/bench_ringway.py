#!/usr/bin/env python3
"""bench_ringway.py RINGWAY RANKS [args of bench_mpi.c]: ringway bench, in the peers' CSV.

Called by run-peers.sh for the ringway-* peers. `ringway bench` measures as bench_mpi.c does: each iteration
behind a barrier, its time the largest over the ranks, results verified before and after. A wrong element or a
failed rank ends the run with an error. cpu_us, lilo_us and others_pct are not measured and given as 0;
the latter keeps every round in analyze.py (rounds are judged by the peers' own others_pct).
"""
import argparse, csv, subprocess, sys

OPS = {"all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
       "broadcast": "broadcast", "all_to_all": "all-to-all"}
ap = argparse.ArgumentParser()
ap.add_argument("ringway"); ap.add_argument("ranks", type=int)
ap.add_argument("--impl", default="ringway"); ap.add_argument("--transport", default="tcp"); ap.add_argument("--round", default="0")
ap.add_argument("--ops", default=",".join(OPS)); ap.add_argument("--sizes"); ap.add_argument("--budget-ms", default="150")
ap.add_argument("--min", default="8"); ap.add_argument("--max", default="64M"); ap.add_argument("--step", default="4")
ap.add_argument("--launcher", default="", help="words before `ringway bench`, for ranks in namespaces; {ranks} is replaced")
A, _ = ap.parse_known_args()

for op in A.ops.split(","):
    if op not in OPS:
        continue
    sizes = ["--sizes", A.sizes] if A.sizes else ["-b", A.min, "-e", A.max, "-f", A.step]
    command = A.launcher.replace("{ranks}", str(A.ranks)).split() + [A.ringway, "bench", OPS[op], "--csv", "--budget-ms", A.budget_ms, *sizes]
    if not A.launcher:
        command += ["-n", str(A.ranks)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    for r in csv.DictReader(done.stdout.splitlines()):
        if r["wrong"] != "0":
            sys.exit(f"{op} of {r['size_bytes']} B: {r['wrong']} wrong elements")
        print(",".join([A.impl, A.transport, op, r["ranks"], r["size_bytes"], r["iterations"], r["p50_us"], r["p99_us"],
                        r["algbw_gb_s"], r["busbw_gb_s"], r["min_us"], "0", "0", A.round, "0"]), flush=True)
    if done.returncode:
        sys.exit(done.returncode)
