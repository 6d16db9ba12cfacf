#!/usr/bin/env python3
"""table.py [--out DIR] [--rounds 5] [--resume] [--only TEXT ...] [--for SECONDS] [--estimate]: the whole table of Ringway beside
its peers by one command: all operations, transports and numbers of ranks.

Each case is an operation among 2 or 4 ranks over shared memory, TCP over loopback, or TCP between network namespaces (veth);
TCP under the system's congestion control and with every peer under reno. Every peer runs with malloc's huge pages, the best
setting of most. In a round all peers run each case in turn, in an order that differs from round to round, by run-peers.sh,
whose head says what has to be installed; where that is missing its `setup` and `cargo build --release` are run first.

DIR (default: target/peers) then holds raw/ (what each run printed), table.csv (all of it, for analyze.py), table.md (a table
per case: our median and the best peer's over the rounds, the ratio, what it is to reach, and whether it does) and plots/ (SVG).

--resume goes on where an earlier call stopped: runs in raw/ are not made again. --for ends before so many seconds are over, and writes the
tables of what there is. --only TEXT keeps cases and peers whose names "CASE PEER" contain a TEXT, such as "shm 2 all_reduce"
or "ringway"; it may be given several times. --estimate says how long what is missing takes, and runs nothing. --near NS judges
by runs before and after which a cache line passed between the first two CPUs within NS nanoseconds, where a case has such.
"""
import argparse, collections, csv, os, random, statistics, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HOME = os.environ.setdefault("PEERS_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "peers-bench"))
RINGWAY = os.environ.setdefault("RINGWAY", os.path.join(ROOT, "target", "release", "ringway"))
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "pingpong"]
KI, MI = 1 << 10, 1 << 20
SIZES = {"all_reduce": "8,2K,32K,64K,512K,2M,8M,64M", None: "8,2K,32K,512K,8M,64M"}
TUNABLES = "glibc.malloc.hugetlb=1"
# Longest run of one peer and case, in seconds; and what one is taken to last before any was made.
LIMIT_S = 100
GUESS_S = {2: 5.0, 4: 9.0}
HEAD = ("impl,transport,op,ranks,bytes,iters,median_us,p99_us,algbw_GBps,busbw_GBps,min_us,lilo_us,cpu_us,round,others_pct,"
        "handoff_before_ns,handoff_after_ns")

Case = collections.namedtuple("Case", "transport cc ranks op")


def name(case):
    return " ".join([case.transport, *([case.cc] if case.cc else []), str(case.ranks), case.op])


def cases():
    for op in OPS:
        for transport, cc in (("shm", ""), ("tcp", ""), ("tcp", "reno"), ("netns", ""), ("netns", "reno")):
            for ranks in (2, 4):
                if op != "pingpong" or ranks == 2:
                    yield Case(transport, cc, ranks, op)


def target(case, size, plain):
    """The ratio to the best peer that a row is to reach."""
    large = size >= 8 * MI
    if case.op != "all_reduce":
        return 1.0 if not large else 1.5 if (case.op, case.transport) == ("reduce_scatter", "shm") else 1.15
    if case.transport != "shm":
        return 1.0 if size < 64 * KI else 1.15 if not large or case.cc == "reno" else 1.5
    if plain:
        return 1.15 if large else 1.0
    if case.ranks > 2:
        return 1.0
    return {32 * KI: 1.5, 512 * KI: 1.8, 8 * MI: 1.4, 64 * MI: 1.25}.get(size, 1.0)


def usable_peers():
    """Transport -> peers that are installed."""
    listed = subprocess.run([os.path.join(HERE, "run-peers.sh"), "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = collections.defaultdict(list)
    for line in listed.splitlines():
        peer, _, command = line.partition(": ")
        if command != "not installed":
            kind = peer.rsplit("-", 1)[1]
            found["tcp" if kind == "sockets" else kind].append(peer)
    return found


def prepare():
    if not os.access(RINGWAY, os.X_OK):
        subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
    if not os.path.isdir(os.path.join(HOME, "bin")):
        subprocess.run([os.path.join(HERE, "run-peers.sh"), "setup"], check=True)


class Runs:
    """What is to be run, and what was."""

    def __init__(self, args):
        self.args = args
        self.raw = os.path.join(args.out, "raw")
        os.makedirs(self.raw, exist_ok=True)
        self.peers = usable_peers()

    def path(self, case, round_number, peer):
        return os.path.join(self.raw, f"{name(case).replace(' ', '-')}.{round_number}.{peer}.csv")

    def wanted(self, case, peer):
        return not self.args.only or any(text in f"{name(case)} {peer}" for text in self.args.only)

    def all(self):
        """(case, round, peer), rounds outermost, so that what is there is of all cases alike."""
        for round_number in range(1, self.args.rounds + 1):
            order = random.Random(round_number)
            for case in cases():
                peers = [peer for peer in self.peers[case.transport] if self.wanted(case, peer)]
                if case.op != "all_reduce":
                    peers = [peer for peer in peers if "plain" not in peer]
                order.shuffle(peers)
                for peer in peers:
                    yield case, round_number, peer

    def missing(self):
        return [run for run in self.all() if not (self.args.resume and os.path.exists(self.path(*run)))]

    def lasted(self):
        """(case, peer) -> seconds that its runs took."""
        found = {}
        for run in self.all():
            if os.path.exists(self.path(*run)):
                walls = [line.rsplit("wall_s=", 1)[1] for line in open(self.path(*run)) if "wall_s=" in line]
                if walls:
                    # Namespaces are made and taken down beside what is counted there.
                    found[run[0], run[2]] = float(walls[-1]) + 1.0
        return found

    def one(self, case, round_number, peer):
        size = self.args.sizes or SIZES.get(case.op, SIZES[None])
        command = [os.path.join(HERE, "run-peers.sh"), "--ops", case.op, "--sizes", size, "--ranks", str(case.ranks), "--peers", peer, "--rounds", "1",
                   "--first-round", str(round_number), "--bind", "--tunables", TUNABLES, "--budget-ms", str(self.args.budget_ms), "--limit", str(LIMIT_S)]
        command += ["--cc", case.cc] if case.cc else []
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode or "# run," not in done.stdout:
            sys.exit(f"run-peers.sh failed for {name(case)} {peer}:\n{done.stdout}{done.stderr}")
        path = self.path(case, round_number, peer)
        with open(path + ".part", "w") as file:
            file.write(done.stdout)
        os.replace(path + ".part", path)

    def make(self):
        begun, lasted = time.monotonic(), self.lasted()
        missing = self.missing()
        for number, (case, round_number, peer) in enumerate(missing):
            guess = lasted.get((case, peer), GUESS_S[case.ranks])
            if self.args.seconds and time.monotonic() - begun + guess > self.args.seconds:
                print(f"# {len(missing) - number} runs are left for later: --resume goes on", flush=True)
                return
            at = time.monotonic()
            self.one(case, round_number, peer)
            print(f"{number + 1}/{len(missing)}  round {round_number}  {name(case)}  {peer}  {time.monotonic() - at:.1f} s", flush=True)

    def bounds(self):
        """Bytes -> us of the ideal all-reduce of two ranks, measured once in each directory."""
        path, program = os.path.join(self.raw, "bounds.txt"), os.path.join(HOME, "bin", "bounds")
        if not os.path.exists(path) and os.access(program, os.X_OK) and self.args.bounds:
            told = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout
            with open(path, "w") as file:
                file.write(told)
        if not os.path.exists(path):
            return {}
        rows = [line.strip().split(",") for line in open(path) if line.startswith("bound,shm_allreduce_2,")]
        return {int(row[2]): float(row[3]) for row in rows}


def results(runs, near):
    """case -> bytes -> peer -> times of the rounds in us. Also writes table.csv."""
    found = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    with open(os.path.join(runs.args.out, "table.csv"), "w") as table:
        table.write(HEAD + "\n")
        for case, round_number, peer in runs.all():
            path = runs.path(case, round_number, peer)
            if not os.path.exists(path):
                continue
            lines = [line for line in open(path) if not line.startswith(("#", "impl,"))]
            table.writelines(lines)
            for row in csv.reader(lines):
                is_near = max(float(x) for x in row[15:17]) <= near if near and len(row) > 16 else True
                found[case][int(row[4])][peer].append((is_near, float(row[6])))
    for sizes in found.values():
        for peers in sizes.values():
            for peer, times in peers.items():
                # All of it where no run was near.
                peers[peer] = [us for is_near, us in times if is_near] or [us for _, us in times]
    return found


def us(time_us):
    return f"{time_us:.2f}" if time_us < 10 else f"{time_us:.1f}" if time_us < 100 else f"{time_us:.0f}" if time_us < 1e4 else f"{time_us / 1e3:.1f}k"


def human(size):
    return f"{size // MI} MiB" if size >= MI and size % MI == 0 else f"{size // KI} KiB" if size >= KI and size % KI == 0 else f"{size} B"


def title(case):
    where = {"shm": "shared memory", "tcp": "TCP over loopback", "netns": "TCP between network namespaces"}[case.transport]
    cc = "" if case.transport == "shm" else ", every peer under reno" if case.cc else ", the system's congestion control"
    return f"{case.op}, {case.ranks} ranks, {where}{cc}"


def table(case, sizes, plain, ideal, score):
    """A case's table, and (met, missed) counted into `score`."""
    ours = f"ringway-{'plain-' if plain else ''}{case.transport}"
    others = {peer for peers in sizes.values() for peer in peers if not peer.startswith("ringway-")}
    rows = []
    for size, peers in sorted(sizes.items()):
        medians = {peer: statistics.median(times) for peer, times in peers.items() if peer in others or peer == ours}
        if ours not in medians or len(medians) < 2:
            continue
        best = min((peer for peer in medians if peer in others), key=medians.get)
        ratio, wanted = medians[best] / medians[ours], target(case, size, plain)
        met = ratio >= wanted
        bound = ideal.get(size) if (case.transport, case.ranks, case.op) == ("shm", 2, "all_reduce") and not plain else None
        near = f"{100 * bound / medians[ours]:.0f} %" if bound else ""
        if bound and size >= 512 * KI:
            met = met and bound >= 0.75 * medians[ours]
        score.append((met, f"{name(case)}{' plain' if plain else ''} {human(size)}: {ratio:.2f} of {wanted:g}"))
        rounds = f"{len(peers[ours])} and {len(peers[best])}"
        rows.append(f"| {human(size)} | {us(medians[ours])} | {us(medians[best])} {best} | {ratio:.2f} | {wanted:g} | {'yes' if met else '**no**'} | {near} | {rounds} |")
    if not rows:
        return ""
    whose = ", buffers of the caller's own" if plain else ""
    return (f"\n### {title(case)}{whose}\n\n| size | Ringway (us) | best peer (us) | ratio | to reach | reached | of the ideal | rounds |\n"
            "|---|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n")


def write_tables(runs):
    found, ideal, score = results(runs, runs.args.near), runs.bounds(), []
    text = ""
    for case in cases():
        for plain in (False, True):
            text += table(case, found[case], plain, ideal, score)
    met = sum(1 for reached, _ in score if reached)
    head = (f"Medians over the rounds, in microseconds; the ratio is the best peer's time over ours, above 1 where Ringway is ahead. {met} of "
            f"{len(score)} rows reach what they are to.\n")
    path = os.path.join(runs.args.out, "table.md")
    with open(path, "w") as file:
        file.write(head + text)
    print(head.strip())
    for reached, row in score:
        if not reached:
            print(f"  behind: {row}")
    subprocess.run([sys.executable, os.path.join(HERE, "plot.py"), os.path.join(runs.args.out, "table.csv"), "--out", os.path.join(runs.args.out, "plots")],
                   stdout=subprocess.DEVNULL, check=True)
    print(path)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=os.path.join(ROOT, "target", "peers"))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--only", action="append", default=[], metavar="TEXT")
    ap.add_argument("--for", dest="seconds", type=float, metavar="SECONDS")
    ap.add_argument("--estimate", action="store_true")
    ap.add_argument("--sizes", help="instead of each operation's own")
    ap.add_argument("--budget-ms", type=int, default=100)
    ap.add_argument("--near", type=float, metavar="NS")
    ap.add_argument("--no-bounds", dest="bounds", action="store_false", help="do not measure what the machine allows")
    ap.add_argument("--no-run", action="store_true", help="only write the tables of what there is")
    args = ap.parse_args()
    args.out = os.path.abspath(args.out)
    prepare()
    runs = Runs(args)
    lasted, missing = runs.lasted(), runs.missing()
    seconds = sum(lasted.get((case, peer), GUESS_S[case.ranks]) for case, _, peer in missing)
    print(f"# {len(missing)} runs of {len(list(runs.all()))}, about {seconds / 60:.0f} minutes", flush=True)
    if args.estimate:
        return
    if not args.no_run:
        runs.make()
    write_tables(runs)


if __name__ == "__main__":
    main()
