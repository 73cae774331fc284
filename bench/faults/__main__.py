"""Runs this library and its peers under the same faults. Reports lost records, double owners and duplicates."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from .faults import ALL, FAULTS
from .group import Settings
from .run import Outcome, run, start_cluster

PEERS = {
    "ours": "allocator, sticky",
    "by_key": "allocator, by key",
    "set_partitioner": "kazoo SetPartitioner",
    "kiel_member": "kiel 0.9.3",
}
OLD_KAFKA = "0.9.0.1"  # the newest version that kiel supports


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Returns two tables in Markdown: the violations of each peer, and the standstill and duplicates of each fault."""
    lines = [
        "| peer | Kafka | records | lost | owned by two | commits set back | duplicates | unexplained | problems |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.peer, outcome.kafka), []).append(outcome)
    for (peer, kafka), runs in groups.items():
        verdicts = [outcome.verdict for outcome in runs]
        numbers = [
            sum(verdict.produced for verdict in verdicts),
            sum(len(verdict.lost) for verdict in verdicts),
            sum(len(verdict.overlaps) for verdict in verdicts),
            sum(len(verdict.regressions) for verdict in verdicts),
            sum(verdict.duplicates for verdict in verdicts),
            sum(len(verdict.beyond) for verdict in verdicts),
            sum(len(outcome.problems) for outcome in runs),
        ]
        lines.append(f"| {PEERS[peer]} | {kafka} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
    heads = [f"{PEERS[peer]}, {kafka}" for peer, kafka in groups]
    lines += ["", "| fault | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for kind in dict.fromkeys(figure.fault.kind for outcome in outcomes for figure in outcome.figures):
        cells = []
        for runs in groups.values():
            figures = [figure for outcome in runs for figure in outcome.figures if figure.fault.kind == kind]
            times = [figure.standstill_s for figure in figures]
            repeated = sum(figure.duplicates for figure in figures)
            cells.append(f"{median(times):.1f} (worst {max(times):.1f}), {repeated}" if times else "not run")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=["ours", "set_partitioner"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to cause faults, for each peer and seed")
    parser.add_argument("--faults", nargs="+", choices=list(ALL), default=list(FAULTS))
    parser.add_argument("--kafka", nargs="+", default=["3.9.1"], help=f"kiel runs on {OLD_KAFKA} only")
    parser.add_argument("--python2", default="python2.7", help="interpreter for kiel")
    parser.add_argument("--python2-path", default="", help="folder with kiel 0.9.3, tornado 4.5.3 and kazoo 2.6.1")
    parser.add_argument("--directory", type=Path, help="folder for histories and logs (default: a new one; it is kept)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="allocator-faults-"))
    outcomes = []
    for kafka in options.kafka:
        settings = replace(Settings(), kafka=kafka)
        for peer in options.peers:
            if peer == "kiel_member" and kafka != OLD_KAFKA:
                continue
            for seed in options.seeds:
                # new servers for each run, so that what one peer leaves behind does not affect the next
                with start_cluster(settings) as cluster:
                    outcome = run(
                        cluster,
                        settings,
                        seed,
                        options.seconds,
                        directory / f"{peer}-{kafka}-{seed}",
                        peer=peer,
                        kinds=options.faults,
                        python=options.python2 if peer == "kiel_member" else sys.executable,
                        path=options.python2_path if peer == "kiel_member" else "",
                    )
                print(f"{outcome.table()}\n{outcome.verdict}\n" + "".join(f"  {each}\n" for each in outcome.problems))
                outcomes.append(outcome)
    print(markdown(outcomes))
    print(f"\nhistories and logs are in {directory}")
    return 0 if all(outcome.holds for outcome in outcomes if outcome.peer == "ours") else 1


if __name__ == "__main__":
    sys.exit(main())
