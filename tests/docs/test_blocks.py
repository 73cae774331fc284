"""Runs the code blocks of the documents on real servers, or at least parses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from allocator.testing import LocalCluster
from allocator.testing.ports import PortLease
from allocator.testing.topics import zookeeper_client
from tests.docs.blocks import READ, RUN, Block, Session, blocks, command_faults, faults, unmatched
from tests.repo.repository import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# pages whose code needs several clusters or other servers: parsed here, and tested in other directories
ELSEWHERE = {
    "README.md": "tests/repo/test_documents.py",
    "docs/doctor.md": "tests/migrate",
    "docs/howto/migration.md": "tests/migrate",
    "docs/howto/schema-registry.md": "tests/schemas",
    "docs/index.md": "tests/repo/test_install.py",
    "docs/migration.md": "tests/migrate",
    "docs/old-groups.md": "tests/groups",
    "docs/pipelines.md": "tests/spark",
    "docs/spark.md": "tests/spark/test_spark_documents.py",
    "docs/testing.md": "tests/testing",
}
RUN_HERE = [
    "docs/install.md",
    "docs/tutorial.md",
    "docs/monitoring.md",
    "docs/web.md",
    *(page for path in sorted((DOCS / "howto").glob("*.md")) if (page := named(path)) not in ELSEWHERE),
]
# pages about what tests of other directories cover
LONG = {f"docs/howto/{name}.md" for name in ("aiokafka", "function", "kafka-python", "operations", "side-by-side")}


@pytest.fixture
def places(page: str, kafka_cluster: LocalCluster) -> Iterator[dict[str, str]]:
    """Servers at the addresses of the pages, without topics: a page creates those that its examples read."""
    created = re.findall(r'NewTopic\("([\w-]+)"', (ROOT / page).read_text())
    chroot = f"/docs-{uuid4().hex[:8]}"
    with zookeeper_client(kafka_cluster.zookeeper) as client:
        client.ensure_path(chroot)
    ports = PortLease()  # of processes that the page starts
    shown, beside, over_kafka = ports.take(), ports.take(), ports.take()
    yield {
        "localhost:9092": kafka_cluster.bootstrap,
        "localhost:2181": kafka_cluster.zookeeper + chroot,
        "--port 8180": f"--port {shown}",
        "127.0.0.1:8180": f"127.0.0.1:{shown}",
        "port = 8181": f"port = {beside}",
        "127.0.0.1:8181": f"127.0.0.1:{beside}",
        "--port 8182": f"--port {over_kafka}",
    }
    ports.release()
    for topic in created:
        kafka_cluster.delete_topic(topic)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long) if page in LONG else page for page in RUN_HERE]
)
def test_the_code_of_a_page_works(page: str, places: dict[str, str], tmp_path: Path) -> None:
    with Session(tmp_path, places) as session:
        for block in blocks(ROOT / page):
            session.take(block)


def test_no_two_pages_create_the_same_topic() -> None:
    """So that a reader may go from page to page on the same servers."""
    created = [topic for page in RUN_HERE for topic in re.findall(r'NewTopic\("([\w-]+)"', (ROOT / page).read_text())]
    assert len(created) > 5
    assert sorted(created) == sorted(set(created))


@pytest.mark.parametrize("page", RUN_HERE)
def test_the_text_names_each_file(page: str) -> None:
    """The marks are comments, which no reader sees."""
    text = (ROOT / page).read_text()
    for mark in re.finditer(r"^<!-- test: write (\S+) -->", text, re.MULTILINE):
        before = text[: mark.start()].rpartition("```")[2]
        assert f"`{mark[1]}`" in before, f"{page}: name {mark[1]} above its block"


def test_programs_run_what_they_define() -> None:
    """A program that defines `main` and does not call it does nothing."""
    python = [block for page in PAGES for block in blocks(page) if block.language == "python"]
    defined = re.compile(r"^(?:async )?def (main|serve)\(", re.MULTILINE)
    idle = [
        str(block)
        for block in python
        if (found := defined.search(block.code)) and not re.search(rf"(?<!def ){found[1]}\b", block.code)
    ]
    assert not idle


def test_blocks_parse_and_their_commands_exist() -> None:
    read = [block for page in PAGES for block in blocks(page) if block.language in READ]
    wrong = [f"{block}: {fault}" for block in read for fault in faults(block)]
    wrong += command_faults((ROOT / "README.md").read_text())  # whose commands are in indented blocks
    assert not wrong


def test_every_page_with_code_is_run_here_or_elsewhere() -> None:
    with_code = {named(page) for page in PAGES if any(block.language in RUN for block in blocks(page))}
    assert not with_code - set(RUN_HERE) - set(ELSEWHERE)
    assert not [place for place in ELSEWHERE.values() if not (ROOT / place).exists()]


# -- the checks can fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "code", "expected"),
    [
        ("python", "def f(:\n", "invalid syntax"),
        ("python", "from allocator import Konsumer\n", "allocator has no Konsumer"),
        ("sh", "if true; then\n", "syntax error"),
        ("sh", "allocator group describe --nope billing\n", "no option --nope"),
        ("sh", "allocator nope\n", "no such command"),
        ("toml", "[kafka\n", ""),
        ("toml", '[handler]\ntarget = "a:b"\nretrys = 3\n', "[handler] has no setting retrys"),
        ("json", "{", ""),
    ],
)
def test_faults_are_found(language: str, code: str, expected: str) -> None:
    found = list(faults(Block("page", 1, language, code)))
    assert found
    assert expected in found[0]


def test_missing_output_is_found() -> None:
    assert unmatched("one ... 3\nend\n", "zero\none two 3\nmore\nend\n") == []
    assert unmatched("one ... 4\n", "one two 3\n") == ["one ... 4"]
    assert unmatched("b\na\n", "a\nb\n") == ["a"]


def test_a_program_that_fails_is_found(tmp_path: Path) -> None:
    with Session(tmp_path, {}) as session, pytest.raises(AssertionError, match="page:7 ended with 1"):
        session.take(Block("page", 7, "python", "raise SystemExit(1)\n"))


def test_marks_are_read(tmp_path: Path, unique_name: Callable[[], str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "a\n\n<!-- test: until it is up -->\n```sh\nserve\n```\n\n1. b\n\n    ```toml\n    x = 1\n    ```\n"
    )
    found = [(b.line, b.language, b.code, b.verb, b.rest) for b in blocks(page)]
    assert found == [(4, "sh", "serve\n", "until", "it is up"), (10, "toml", "x = 1\n", "", "")]
