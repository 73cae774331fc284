"""Runs short benches, and fails if allocator has become slower compared with another client (a peer).

    python -m bench.gate                    all of them, up to twelve minutes
    python -m bench.gate --only decode      one of them
    python -m bench.gate --write            store the ratios; on a quiet machine, after an intended change

A ratio tells how many times better allocator is than the peer in the same run, so the speed of the machine does not
matter. The gate fails if a ratio is more than 15 % below the stored one in `bench/gate.json`. Before that, it repeats
the bench up to twice, and takes the best ratio. If a bench measures CPU time, the gate compares that, because other
processes hardly change it. Where the peers wait for fixed times, so that a slow machine changes the ratio, the peer is
this library as it was when the ratios were stored (`bench.former`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

RATIOS = Path(__file__).with_name("gate.json")
FORMER = "the version before"
LOSS = 0.15
ATTEMPTS = 3

Ratios = dict[str, float]


def decode(found: Any) -> Ratios:
    ns = found["100 B, none"]
    return {f"CPU, {what}, aiokafka": ns["aiokafka, records"] / ns[f"ours, {what}"] for what in ("records", "columns")}


def consume(found: Any) -> Ratios:
    ratios = {}
    for kind, what in (("throughput", "CPU"), ("idle", "idle CPU"), ("latency", "CPU at 5,000 records/s")):
        for case in found[kind]:
            cpu_s = {name: result["cpu_s"] / (result["count"] or 1) for name, result in case["results"].items()}
            theirs = cpu_s.pop("confluent-kafka")
            for name, ours in cpu_s.items():
                ratios[f"{what}, {name.partition(', ')[2]}, confluent-kafka"] = theirs / ours
    return ratios


def rebalance(found: Any) -> Ratios:
    (case,) = found["cases"]
    return {
        f"{event}, ms, {FORMER}": each["former-sticky"]["last_s"] / each["ours-sticky"]["last_s"]
        for event, each in case["events"].items()
    }


def group(found: Any) -> Ratios:
    clients = found["clients"]
    ours = clients.pop("ours")
    names = {"first_s": "first record, ms", "commit_s": "commits, ms"}
    return {
        f"{text}, {peer}": median(theirs[name]) / median(ours[name])
        for peer, theirs in clients.items()
        for name, text in names.items()
    }


def mirror(found: Any) -> Ratios:
    middle = {name: {key: median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()}
    ours, theirs = middle["v2 ours"], middle["v2 MirrorMaker"]
    return {
        "records/s, MirrorMaker": ours["records_s"] / theirs["records_s"],
        "CPU, MirrorMaker": theirs["cpu_s"] / ours["cpu_s"],
    }


def spark(found: Any) -> Ratios:
    cpu_s = {each["name"]: each["cpu_s"] for each in found}
    return {"CPU, the same batches from memory": cpu_s["in memory (ceiling)"] / cpu_s["allocator"]}


def produce(found: Any) -> Ratios:
    cpu_us = {name: each["cpu_us"] for name, each in found["throughput, 100 B"].items()}
    alone = found["latency, 100 B"]  # its times are those of the other processes of the machine
    return {
        "CPU, send, aiokafka": cpu_us["aiokafka"] / cpu_us["ours, send"],
        "CPU, send_many, confluent-kafka": cpu_us["confluent-kafka"] / cpu_us["ours, send_many"],
        "CPU, columns, confluent-kafka": cpu_us["confluent-kafka"] / cpu_us["ours, columns"],
        "CPU, send_and_wait, aiokafka": alone["aiokafka"]["cpu_us"] / alone["ours, send"]["cpu_us"],
    }


class Bench(NamedTuple):
    arguments: str
    ratios: Callable[[Any], Ratios]


BENCHES: Mapping[str, Bench] = {
    "decode": Bench("--sizes 100 --codecs none --seconds 0.5", decode),
    "consume": Bench(
        "--only throughput idle latency --contenders 'ours, records' 'ours, batches' confluent-kafka --formats v2 "
        "--sizes 100 --codecs none --records 1000000 --seconds 10 --rest-s 2 --runs 3",
        consume,
    ),
    "rebalance": Bench(
        "--members 10 --partitions 1000 --events leave join --repeat 15 --peers ours-sticky former-sticky", rebalance
    ),
    "group": Bench("--clients ours aiokafka confluent-kafka --no-rebalance --runs 5 --turns 3 --commits 200", group),
    "produce": Bench(
        "--only throughput latency --contenders 'ours, send' 'ours, send_many' 'ours, columns' aiokafka "
        "confluent-kafka --sizes 100 --runs 5 --seconds 2",
        produce,
    ),
    "mirror": Bench("--contenders ours MirrorMaker --formats v2 --records 500000 --runs 3", mirror),
    "spark": Bench("--records 2000000 --partitions 16 --rounds 2 --no-connector", spark),
}


def measure(name: str) -> Ratios:
    bench = BENCHES[name]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.json"
        subprocess.run(
            [sys.executable, "-m", f"bench.{name}", *shlex.split(bench.arguments), "--json", str(out)],
            check=True,
            stdout=sys.stderr,
        )
        return {f"{name}: {what}": ratio for what, ratio in bench.ratios(json.loads(out.read_text())).items()}


def lost(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Returns the names of the ratios that are missing or too far below the stored ones."""
    return [what for what, ratio in before.items() if now.get(what, 0.0) < ratio * (1 - LOSS)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(BENCHES), default=list(BENCHES))
    parser.add_argument("--write", action="store_true", help="store the ratios in bench/gate.json")
    given = parser.parse_args()
    noted: Ratios = json.loads(RATIOS.read_text()) if RATIOS.exists() else {}
    failed = []
    print("| times better than the peer | stored | now | |\n|---|---|---|---|")
    for name in given.only:
        before = {what: ratio for what, ratio in noted.items() if what.startswith(f"{name}: ")}
        now = measure(name)
        for _ in range(0 if given.write else ATTEMPTS - 1):
            if not lost(before, now):
                break
            again = measure(name)
            now = {what: max(ratio, again.get(what, 0.0)) for what, ratio in now.items()}
        for what, ratio in now.items():
            said = "lost" if what in lost(before, now) else "new" if what not in before else ""
            print(f"| {what} | {before.get(what, 0.0):.2f} | {ratio:.2f} | {said} |", flush=True)
        failed += [] if given.write else lost(before, now)
        noted = {**{what: ratio for what, ratio in noted.items() if what not in before}, **now}
    if given.write:
        ratios = {what: 1.0 if what.endswith(FORMER) else round(noted[what], 2) for what in sorted(noted)}
        RATIOS.write_text(json.dumps(ratios, indent=1) + "\n")
    for what in failed:
        print(f"more than {LOSS:.0%} below the stored ratio: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
