#!/usr/bin/env python3
"""plot.py FILES.. [--op OP] [--ranks N] [--out DIR] [--near NS]: SVG plots of run-peers.sh's CSV, by Python alone.

One file per transport (with the congestion control that was asked for), number of ranks and operation: the time of the best round over the size, on logarithmic scales.
Ringway is the thick line. --near keeps runs beside which a cache line passed between two CPUs within NS nanoseconds.
"""
import argparse, collections, csv, html, math, os

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 190, 40, 50
COLOURS = ["#0b6e4f", "#c0392b", "#2c6fbb", "#b8860b", "#7d3c98", "#5d6d7e", "#d35400", "#16a085", "#a04000", "#34495e"]
OURS = "#111111"


def rows(files, near):
    """(transport, ranks, op) -> peer -> bytes -> times of the rounds in us."""
    found = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    for name in files:
        with open(name) as file:
            for row in csv.reader(line for line in file if not line.startswith(("#", "impl,"))):
                try:
                    peer, transport, op, ranks, size, us = row[0], row[1], row[2], int(row[3]), int(row[4]), float(row[6])
                    handoffs = [float(x) for x in row[15:17]]
                except (IndexError, ValueError):
                    continue
                if near is not None and handoffs and max(handoffs) > near:
                    continue
                kind = next((k for k in ("netns", "shm", "tcp") if k in transport), transport)
                cc = next((c for c in ("cubic", "reno", "bbr") if transport.endswith("-" + c)), "")
                variant = transport.replace(kind, "").removesuffix(cc).strip("-")
                found[f"{kind}-{cc}".strip("-"), ranks, op][f"{peer} {variant}".strip()][size].append(us)
    return found


def size(count):
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= unit and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def number(us):
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} us"


def plot(title, lines):
    """One picture, as the text of an SVG file. `lines`: peer -> [(bytes, us)]."""
    points = [point for line in lines.values() for point in line]
    least_x, most_x = min(x for x, _ in points), max(x for x, _ in points)
    least_y = 10 ** math.floor(math.log10(min(y for _, y in points)))
    most_y = 10 ** math.ceil(math.log10(max(y for _, y in points) * 1.0001))

    def across(x):
        return LEFT + (math.log(x / least_x) / max(math.log(most_x / least_x), 1e-9)) * (WIDTH - LEFT - RIGHT)

    def down(y):
        return HEIGHT - BOTTOM - math.log(y / least_y) / math.log(most_y / least_y) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}</text>']
    y = least_y
    while y <= most_y * 1.0001:
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{number(y)}</text>')
        y *= 10
    for x in sorted({x for x, _ in points}):
        out.append(f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
                   f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{size(x)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">bytes</text>')
    ours = sorted(peer for peer in lines if peer.startswith("ringway"))
    others = sorted(peer for peer in lines if peer not in ours)
    for place, peer in enumerate(ours + others):
        colour = OURS if peer in ours else COLOURS[(place - len(ours)) % len(COLOURS)]
        thick = 3 if peer in ours else 1.4
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in lines[peer])
        key = TOP + 8 + 18 * place
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
        out.extend(f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in lines[peer])
        out.append(f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 34}" y1="{key}" y2="{key}" stroke="{colour}" '
                   f'stroke-width="{thick}"/><text x="{WIDTH - RIGHT + 40}" y="{key + 4}">{html.escape(peer)}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("files", nargs="+")
    ap.add_argument("--op")
    ap.add_argument("--ranks", type=int)
    ap.add_argument("--out", default=".")
    ap.add_argument("--near", type=float)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for (kind, ranks, op), peers in sorted(rows(args.files, args.near).items()):
        if (args.op and op != args.op) or (args.ranks and ranks != args.ranks):
            continue
        lines = {peer: sorted((x, min(times)) for x, times in sizes.items()) for peer, sizes in peers.items()}
        path = os.path.join(args.out, f"{op}-{ranks}-{kind}.svg")
        with open(path, "w") as file:
            file.write(plot(f"{op}, {ranks} ranks, {kind}: best round", lines))
        print(path)


if __name__ == "__main__":
    main()
