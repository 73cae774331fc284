"""Fuzzes the targets of fuzz_targets.py, guided by code coverage (atheris).

python -m tests.fuzz.fuzz                          each target for a minute
python -m tests.fuzz.fuzz znodes --seconds 3600    one of them
python -m tests.fuzz.fuzz records --input FILE     one input again, without atheris

An input that breaks a target is written to tests/fuzz/corpus/<target>/, where the tests find it. Commit it with the
fix.
Inputs that reach new code are kept in build/fuzz/<target>/, where the next run begins.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ROOT / "build" / "fuzz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="records, znodes or protocol (default: each)")
    parser.add_argument("--seconds", type=int, default=60, help="how long each target is fuzzed (default 60)")
    parser.add_argument("--input", type=Path, metavar="FILE", help="only this input")
    parser.add_argument("--begin", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.begin:
        run(options.begin[0], options.begin[1:])
    from tests.fuzz.fuzz_targets import CORPUS, SEEDS, TARGETS

    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not a target; the targets are {', '.join(TARGETS)}")
    for target in options.targets or TARGETS:
        if options.input:
            TARGETS[target](options.input.read_bytes())
            continue
        inputs, found = INPUTS / target, CORPUS / target
        inputs.mkdir(parents=True, exist_ok=True)
        found.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(SEEDS[target]):
            (inputs / f"seed-{number}").write_bytes(seed)
        limits = [f"-max_total_time={options.seconds}", "-timeout=30", "-rss_limit_mb=4096", "-max_len=8192"]
        print(f"{target}: {options.seconds} s", flush=True)
        # a subprocess for each, since atheris ends its process
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.fuzz",
            "--begin",
            target,
            *limits,
            f"-artifact_prefix={found}/",
            str(inputs),
        ]
        code = subprocess.run([*command, str(found)], cwd=ROOT).returncode
        if not any(found.iterdir()):
            found.rmdir()
        if code:
            sys.exit(f"{target} is broken; the input is in {found.relative_to(ROOT)}")


def run(target: str, arguments: list[str]) -> None:
    """Does not return."""
    try:
        import atheris
    except ImportError as error:
        sys.exit(f"fuzzing needs atheris ({error}): pip install atheris")
    with atheris.instrument_imports(include=["allocator"]):
        from tests.fuzz.fuzz_targets import TARGETS
    atheris.Setup([target, *arguments], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
