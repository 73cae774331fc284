"""Commands in the documents work, and their links exist."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allocator.assignors import GroupView, Member, compute, resolve
from allocator.testing import LocalCluster
from tests.repo.repository import PACKAGE, ROOT, Program, code_blocks, committed

README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE, FUNCTION = code_blocks(README, "python")


def fill(cluster: LocalCluster, topic: str, count: int, form: str = "value {}") -> None:
    cluster.produce(topic, [form.format(number).encode() for number in range(count)])


def test_the_example_of_the_readme_runs_and_commits(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], group: str, tmp_path: Path
) -> None:
    topic = topic_factory(4)
    fill(kafka_cluster, topic, 100)
    changes = {"orders": topic, "localhost:9092": kafka_cluster.bootstrap, "billing": group}
    changes["localhost:2181"] = kafka_cluster.zookeeper
    code = EXAMPLE
    for before, after in changes.items():
        assert before in code
        code = code.replace(f'"{before}"', f'"{after}"')
    program = tmp_path / "example.py"
    program.write_text(code)
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 10
    with Program([sys.executable, "-u", str(program)], tmp_path / "output") as running:
        running.prints(100)
        running.process.send_signal(signal.SIGINT)
        running.process.wait(30)
    # no request may have followed the last batch. Before 3.11, asyncio.run cancels every task at Ctrl-C, also the one
    # that commits, and the records are delivered again
    if sys.version_info >= (3, 11):
        assert 0 < sum(asyncio.run(committed(kafka_cluster, group, topic, 4)).values()) <= 100


def test_the_allocator_function_of_the_readme_is_a_good_one() -> None:
    names: dict[str, object] = {}
    exec(FUNCTION, names)
    members = tuple(Member(id=f"m{n}", name=f"m{n}", topics=frozenset({"orders", "bills"})) for n in range(3))
    view = GroupView(members=members, partitions={"orders": 8, "bills": 5}, owned={})
    assignment = compute(resolve(names["by_number"]), view)  # type: ignore[arg-type]
    assert sum(map(len, assignment.values())) == 13


def test_the_tornado_service_runs(
    kafka_cluster: LocalCluster, topic_factory: Callable[..., str], tmp_path: Path
) -> None:
    topic = topic_factory(2)
    fill(kafka_cluster, topic, 20, '{{"value": {}}}')
    arguments = [kafka_cluster.bootstrap, kafka_cluster.zookeeper, topic]
    command = [sys.executable, "-m", "examples.tornado_service", *arguments]
    with Program(command, tmp_path / "output") as running:
        running.prints(20)


def test_the_daemon_of_the_readme_runs(
    kafka_cluster: LocalCluster,
    topic_factory: Callable[..., str],
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = topic_factory(2)
    fill(kafka_cluster, topic, 20)
    monkeypatch.setenv("ALLOCATOR_KAFKA_BROKERS", kafka_cluster.bootstrap)
    monkeypatch.setenv("ALLOCATOR_ZOOKEEPER_HOSTS", kafka_cluster.zookeeper)
    monkeypatch.setenv("ALLOCATOR_GROUP_NAME", group)
    monkeypatch.setenv("ALLOCATOR_GROUP_TOPICS", topic)
    command = [sys.executable, "-m", "allocator.cli", "run", "examples/orders.toml"]
    with Program(command, tmp_path / "output") as running:
        running.prints(20)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0, running.lines()
    assert sum(asyncio.run(committed(kafka_cluster, group, topic, 2)).values()) == 20


def test_the_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "check", "test", "test-long", "lint", "help"} <= targets
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", document.read_text(), re.MULTILINE))
        assert named <= targets, document


def test_links_lead_somewhere() -> None:
    wrong = []
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?://)([^)]+)\)", document.read_text()):
            file, _, anchor = target.partition("#")
            path = (document.parent / file) if file else document
            if not path.exists() or (anchor and anchor not in anchors(path)):
                wrong.append(f"{document}: {target}")
    assert not wrong


def anchors(document: Path) -> list[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]


def test_files_and_tests_that_a_document_names_exist() -> None:
    """`tests/package/test_x.py::test_y`, `package/file.h` and `docs/x.md` in back-ticks, and arguments of commands."""
    wrong = []
    names = re.compile(
        r"(?:`|(?:python|pytest) )((?:[\w.-]+/)+[\w.-]+\.(?:py|h|md|toml|yaml))(?:::(\w+))?(?=[`\s])", re.MULTILINE
    )
    for document, path, test in [(each, *found) for each in DOCUMENTS for found in names.findall(each.read_text())]:
        if path.startswith(("aiokafka/", "kiel/", "pykafka/", "kazoo/")):
            continue  # of other projects
        here = [place / path for place in (ROOT, ROOT / "allocator") if (place / path).is_file()]
        if not here or (test and not re.search(rf"^(?:async )?def {test}\b", here[0].read_text(), re.MULTILINE)):
            wrong.append(f"{document}: {path}::{test}" if test else f"{document}: {path}")
    assert not wrong


def test_each_non_obvious_fact_names_a_test() -> None:
    """`test_files_and_tests_that_a_document_names_exist` checks that there is such a test."""
    page = (ROOT / "docs" / "non-obvious.md").read_text().split("\n\n")
    facts = [part for part in page if part.startswith("**")]
    assert len(facts) >= 30
    assert not [fact for fact in facts if not re.search(r"\nTests?: `[\w/]+\.py::test_\w+`", fact)]


def test_the_tests_of_each_package_are_where_contributing_says() -> None:
    """The table has each package that has no directory of its name in tests; other directories are named."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("| package | tests |")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`([\w/]+)`", "".join(row.split(" | ")[0] for row in table.splitlines())))
    places = [path.parent for pattern in ("*/", "core/*/") for path in PACKAGE.glob(f"{pattern}__init__.py")]
    packages = {place.relative_to(PACKAGE).as_posix() for place in places} - {"core"}
    homes = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert {each for each in packages if each.rpartition("/")[2] not in homes} <= listed <= packages
    named = {each.rpartition("/")[2] for each in packages} | set(re.findall(r"`tests/(\w+)", text))
    assert homes <= named
