"""Members on three brokers and three ZooKeeper nodes under random faults and steady load.

`ALLOCATOR_FAULT_SEED` repeats the order, the victims and the durations of a run, but not the timing of the machine. So
a failed run also keeps its history.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

import pytest

from allocator.testing.versions import NEWEST
from bench.faults.faults import FAULTS, FORGETFUL, MORE
from bench.faults.group import Settings
from bench.faults.run import run, start_cluster

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="cutting off one process takes /proc")


# each fault once, with fewer restarts of members, shorter sessions and less load
SHORT = Settings(members=3, partitions=9, session_timeout_s=2.0, calm_s=0.5, rate=30.0)
USUAL = Settings()


def disturb(
    seconds: float,
    capsys: pytest.CaptureFixture[str],
    kinds: Collection[str],
    settings: Settings = USUAL,
    peer: str = "ours",
) -> None:
    seed = int(os.environ.get("ALLOCATOR_FAULT_SEED", random.randrange(10**6)))
    directory = Path(tempfile.mkdtemp(prefix=f"allocator-faults-{seed}-"))
    with capsys.disabled(), start_cluster(settings) as cluster:
        print(f"\nfaults of seed {seed} for {seconds:g} s")
        outcome = run(cluster, settings, seed, seconds, directory, peer=peer, kinds=tuple(kinds))
        print(f"{outcome.table()}\n{outcome.verdict}")
    assert outcome.holds, (
        f"seed {seed} broke a promise: {outcome.verdict}; {outcome.problems}; all events are in "
        f"{directory / 'history.jsonl'}, the members' logs beside it"
    )
    shutil.rmtree(directory)
    assert {figure.fault.kind for figure in outcome.figures} == set(kinds)


@pytest.mark.servers
def test_no_record_is_lost_and_no_partition_has_two_owners_whatever_happens(capsys: pytest.CaptureFixture[str]) -> None:
    disturb(0.0, capsys, FAULTS, SHORT)


@pytest.mark.servers
@pytest.mark.long
def test_nor_with_records_of_different_keys_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """Also checks that the records of a key stay in order, and that records done beyond the committed offset are not
    repeated."""
    disturb(0.0, capsys, FAULTS, SHORT, "by_key")


@pytest.mark.servers
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nor_in_ten_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    disturb(600.0, capsys, MORE)


@pytest.mark.servers
@pytest.mark.long
def test_nor_if_the_ensemble_comes_back_empty(capsys: pytest.CaptureFixture[str]) -> None:
    """The ensemble comes back empty at least three times. The brokers work without ZooKeeper, so only the group is
    affected."""
    disturb(150.0, capsys, FORGETFUL, Settings(kafka=NEWEST))
