#!/usr/bin/env python3
"""simulated.py RINGWAY [--ranks 2,4] [--net shm|tcp] [--sizes ...] [--rounds 3] [--cores N]: what `ringway simulate` foretells
beside what `ringway bench` measures, on this host.

For each number of ranks: `ringway tune` measures what links cost; then the bench and the simulation, by those costs, of
the algorithm that the bench was run by. Where ranks outnumber the cores, neighbours share one. A ratio above 1: foretold longer than
measured. Medians of rounds.
"""
import argparse, csv, json, os, statistics, subprocess, tempfile


def run(command, **env):
    done = subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.PIPE, check=True, text=True, timeout=120)
    return done.stdout


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("ringway")
    ap.add_argument("--ranks", default="2,4")
    ap.add_argument("--net", default="shm", choices=["shm", "tcp"])
    ap.add_argument("--sizes", default="8,1K,8K,64K,512K,4M,32M")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--cores", type=int, default=os.cpu_count())
    ap.add_argument("--switch-us", default="1.0")
    args = ap.parse_args()
    env = {"RINGWAY_PIN": "spread", **({"RINGWAY_NET": "tcp"} if args.net == "tcp" else {})}
    print("ranks  bytes       algorithm      measured us  simulated us  ratio")
    for ranks in args.ranks.split(","):
        with tempfile.NamedTemporaryFile(suffix=".txt") as file:
            # The costs of links are those between two ranks that have a core each.
            run([args.ringway, "tune", "-n", "2", "--sizes", "8", "-o", file.name], **env)
            costs = [line for line in open(file.name) if line.startswith(("ringway-tuning", "link", "width"))]
            with open(file.name, "w") as out:
                out.writelines(costs)
            for line in costs[1:]:
                print("# " + line.strip())
            measured = {}
            for _ in range(args.rounds):
                table = run([args.ringway, "bench", "all-reduce", "-n", ranks, "--csv", "--budget-ms", "60",
                             "--sizes", args.sizes], **env)
                for row in csv.DictReader(table.splitlines()):
                    measured.setdefault((int(row["size_bytes"]), row["algorithm"]), []).append(float(row["p50_us"]))
            shared = ["--cores", str(args.cores), "--switch-us", args.switch_us] if int(ranks) > args.cores else []
            for (size, algorithm), times in sorted(measured.items()):
                rows = json.loads(run([args.ringway, "simulate", "--ranks", ranks, "--size", str(size), "--tuning", file.name,
                                       "--algo", algorithm, "--json", *shared]))
                found = next(row for row in rows if row["algorithm"].lower() == algorithm)
                time = statistics.median(times)
                print(f"{ranks:>5}  {size:>10}  {algorithm:<13}  {time:>11.2f}  {found['time_us']:>12.2f}  {found['time_us'] / time:>5.2f}")


if __name__ == "__main__":
    main()
