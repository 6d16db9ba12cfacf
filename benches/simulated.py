#!/usr/bin/env python3
"""simulated.py RINGWAY [--ranks 2,4] [--net shm|tcp] [--sizes ...] [--rounds 5] [--cores N]: what `ringway simulate` foretells
beside what `ringway bench` measures, on this host.

In every round, for each number of ranks: `ringway tune -n RANKS` for what links and cores cost just then, the bench, and the
simulation by those costs of the algorithm and slices that the bench was run by, measured as it measures. Where ranks outnumber the
cores, they share them. A ratio above 1: foretold longer than measured. Medians over the rounds of times and of each round's ratio.
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
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--cores", type=int, default=os.cpu_count())
    ap.add_argument("--simulator", help="another build of ringway, to simulate by")
    ap.add_argument("--keep", metavar="DIR", help="keep what was measured there")
    args = ap.parse_args()
    env = {"RINGWAY_PIN": "spread", **({"RINGWAY_NET": "tcp"} if args.net == "tcp" else {})}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = args.keep or folder
        for number in range(args.rounds):
            for ranks in args.ranks.split(","):
                file = f"{folder}/tuning-{ranks}-{number}.txt"
                run([args.ringway, "tune", "-n", ranks, "--sizes", "8", "-o", file], **env)
                table = run([args.ringway, "bench", "all-reduce", "-n", ranks, "--csv", "--budget-ms", "60", "--sizes", args.sizes], **env)
                with open(f"{folder}/bench-{ranks}-{number}.csv", "w") as out:
                    out.write(table)
        for number in range(args.rounds):
            for ranks in args.ranks.split(","):
                # The quickest algorithms are not asked for.
                lines = [line for line in open(f"{folder}/tuning-{ranks}-{number}.txt") if not line.startswith("best")]
                print(f"# {ranks} ranks, round {number}: " + "; ".join(line.strip() for line in lines[1:] if " between " not in line))
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                    file.writelines(lines)
                    file.flush()
                    for row in csv.DictReader(open(f"{folder}/bench-{ranks}-{number}.csv")):
                        size, algorithm, measured = row["size_bytes"], row["algorithm"], float(row["p50_us"])
                        shared = ["--cores", str(args.cores)] if int(ranks) > args.cores else []
                        rows = json.loads(run([args.simulator or args.ringway, "simulate", "--ranks", ranks, "--size", size, "--tuning", file.name,
                                               "--algo", algorithm, "--slice", row["slice_bytes"], "--behind-barrier", "--json", *shared]))
                        simulated = next(row for row in rows if row["algorithm"].lower() == algorithm)["time_us"]
                        found.setdefault((int(ranks), int(size), algorithm), []).append((measured, simulated))
    print("ranks  bytes       algorithm      measured us  simulated us  ratio  of each round")
    for (ranks, size, algorithm), times in sorted(found.items()):
        ratios = [simulated / measured for measured, simulated in times]
        measured, simulated = (statistics.median(column) for column in zip(*times))
        print(f"{ranks:>5}  {size:>10}  {algorithm:<13}  {measured:>11.2f}  {simulated:>12.2f}  {statistics.median(ratios):>5.2f}  "
              + " ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
