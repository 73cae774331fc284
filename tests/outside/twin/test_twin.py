"""The same history with this library and with other clients: what they deliver and commit is the same.

Each difference that has a reason is in a table of docs/comparison.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from allocator.testing.plugin import ClusterFactory
from tests.outside.twin import history as steps
from tests.outside.twin.differences import KNOWN, Difference, reasons
from tests.outside.twin.fixed import FIXED
from tests.outside.twin.history import History, draw, repaired, shown, smaller
from tests.outside.twin.run import broker_config, differences, faults
from tests.outside.twin.twins import Hosts, clients_for
from tests.repo.repository import ROOT

long = pytest.mark.long
VERSIONS = ("1.1.1", "2.8.2", "3.9.1", "4.1.1")


async def played(
    factory: ClusterFactory, kafka: str, directory: Path, histories: Iterable[History]
) -> list[tuple[History, list[Difference]]]:
    """Plays the histories and returns each with its differences; the logs of the members go to `directory`."""
    settings = broker_config(kafka)
    cluster = factory(kafka=kafka, **({"broker_config": settings} if settings else {}))
    async with Hosts(cluster, clients_for(kafka), directory) as hosts:
        return [each async for each in differences(hosts, histories)]


def told(wrong: Mapping[str, Iterable[Difference]]) -> str:
    return "\n\n".join(f"{name}: {each}\n{shown(each.history)}" for name, found in wrong.items() for each in found)


@pytest.mark.deadline(600)
@pytest.mark.parametrize("kafka", [v if v == "3.9.1" else pytest.param(v, marks=long) for v in VERSIONS])
async def test_every_client_delivers_and_commits_the_same_in_known_histories(
    kafka: str, cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    names = {history: name for name, history in FIXED.items()}
    found = {names[history]: each for history, each in await played(cluster_factory, kafka, tmp_path, names)}
    wrong = {name: faults(each) for name, each in found.items() if faults(each)}
    assert not wrong, told(wrong)
    needed = {reason for each in found.values() for difference in each for reason in difference.explained()}
    assert kafka != "3.9.1" or needed == {known.name for known in KNOWN}, "a reason that no client needs any more"


@long
@pytest.mark.deadline(1800)
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("kafka", VERSIONS)
async def test_every_client_delivers_and_commits_the_same_in_random_histories(
    kafka: str, cluster_factory: ClusterFactory, tmp_path: Path
) -> None:
    seeds = {draw(seed): seed for seed in range(40)}
    found = await played(cluster_factory, kafka, tmp_path, seeds)
    wrong = {f"seed {seeds[history]}": faults(each) for history, each in found if faults(each)}
    assert not wrong, told(wrong)


def test_the_table_has_each_reason_with_its_clients() -> None:
    text = (ROOT / "docs/comparison.md").read_text().split("\n## Where clients differ")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert {name: set(clients.split(", ")) for name, clients, _ in rows} == {
        known.name: set(known.clients) for known in KNOWN
    }


def test_a_difference_without_a_reason_is_a_fault() -> None:
    history = History((steps.Start("a"), steps.Read(), steps.Mark()))
    same = {"allocator-kafka": [[0, 0, "x"]], "aiokafka": [[0, 0, "x"]], "java": [[0, 0, "x"]]}
    assert not faults([Difference(history, 2, "delivered", same)])
    assert faults([Difference(history, 2, "delivered", {**same, "allocator-kafka": []})])
    assert faults([Difference(history, 2, "delivered", {**same, "java": []})])


def test_a_reason_excuses_its_clients_and_no_others() -> None:
    history = FIXED["a seek back and a close"]
    committed = {"allocator-kafka": {0: 3}, "aiokafka": {0: 3}, "confluent-kafka": {0: 10}}
    seen = Difference(history, 6, "committed", committed)
    assert [each.name for each in reasons(seen, "confluent-kafka")] == ["a position without a record"]
    assert not seen.unexplained()
    assert seen.explained() == {"a position without a record"}
    assert Difference(history, 6, "committed", {**committed, "allocator-kafka": {0: 10}}).unexplained()


@pytest.mark.parametrize("seed", range(20))
def test_a_history_is_repeatable_and_its_parts_make_sense(seed: int) -> None:
    history = draw(seed)
    assert draw(seed) == history == repaired(history)
    assert eval(shown(history), vars(steps)) == history
    for less in smaller(history):
        assert len(less.steps) < len(history.steps)
        assert repaired(less) == less
        for step, scene in zip(less.steps, steps.scenes(less)):
            assert scene.allows(step), shown(less)
