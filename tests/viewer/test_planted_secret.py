"""A secret is planted in every part of records that masks or `nobody` hide, and looked for in all that is shown."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from allocator.cli.commands import main
from allocator.handlers.dead_letter import DeadLetterTopic
from allocator.testing import LocalCluster, ProducedRecord, produce
from allocator.types import Record

SECRET = "geheim4111"
PLANTED = SECRET.encode()
INNER = b'{"number": "geheim4111"}'
TOKEN = "0123456789abcdef0123"
MASKS = ("value..number", "key.id", "!headers.trace")
KEY = b'{"id": "geheim4111"}'
VALUE = json.dumps(
    {
        "card": {"number": SECRET},
        "text": INNER.decode(),
        "log": f"failed for number={SECRET}",
        "bytes": base64.b64encode(INNER).decode(),
        "plain": "harmless",
    }
).encode()
HEADERS: list[list[tuple[str, bytes]]] = [
    [("kafka_dlt-exception-message", PLANTED)],
    [("kafka_dlt-exception-fqcn", b"card " + PLANTED), ("kafka_dlt-exception-stacktrace", b"shop: " + PLANTED)],
    [("allocator.error", PLANTED + b": declined"), ("kafka_dlt-exception-cause-message", PLANTED)],
    [(f"__streams.errors.{name}", PLANTED) for name in ("exception", "stacktrace", "message")],
    [(f"springDeserializerException{name}", b"\xac\xed" + PLANTED) for name in ("Key", "Value")],
    [("__connect.errors.exception.class.name", b"shop.Declined"), ("__connect.errors.exception.message", PLANTED)],
    [("x-copy-of-value", VALUE), ("trace", b"t17")],
]


def decline(number: str) -> None:
    raise ValueError(f"card {number} is declined")


async def write_own_letter(cluster: LocalCluster, orders: str, dead: str) -> None:
    letters = DeadLetterTopic(dead, cluster.bootstrap, "billing")
    try:
        decline(SECRET)
    except ValueError as error:
        await letters.send([Record(orders, 0, 1, 1000, 0, KEY, VALUE, [("authorization", PLANTED)])], error, 3)
    await letters.close()


@pytest.fixture
def dead(kafka_cluster: LocalCluster, topic_factory: Callable[..., str]) -> str:
    """A topic with one letter of each writer."""
    name = topic_factory(1)
    asyncio.run(write_own_letter(kafka_cluster, topic_factory(1), name))
    produce(kafka_cluster.bootstrap, name, [ProducedRecord(KEY, VALUE, 0, headers=each) for each in HEADERS])
    return name


LETTERS = [f"0:{n}" for n in range(1 + len(HEADERS))]


def leaks(text: str) -> list[str]:
    """Returns the secrets that a text has: plain, as hex, or as base64."""
    forms = (SECRET, PLANTED.hex(), base64.b64encode(INNER).decode().rstrip("="))
    return [form for form in forms if form in text]


def settings(path: Path, cluster: LocalCluster, group: str, topic: str, more: str = "") -> Path:
    (path / "mine.py").write_text("async def handle(record):\n    pass\n")
    file = path / "it.toml"
    file.write_text(
        f'[kafka]\nbrokers = "{cluster.bootstrap}"\n[group]\nname = "{group}"\ntopics = ["{topic}"]\n'
        f'membership = "kafka"\n[handler]\ntarget = "mine:handle"\n[records]\nmasks = {json.dumps(MASKS)}\n{more}'
    )
    return file


def test_no_command_shows_what_masks_hide(
    dead: str, kafka_cluster: LocalCluster, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1)
    file = settings(tmp_path, kafka_cluster, group, dead)
    masked = [part for mask in MASKS for part in ("--mask", mask)]

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, [*words])
        assert done.exit_code == code, done.output
        return done.output

    brokers = ["--brokers", kafka_cluster.bootstrap]
    assert leaks(run("deadletters", "list", dead, *brokers)), "without masks the errors are shown"
    for where in ([*brokers, *masked], ["--config", str(file)]):
        for what in ("list", "redrive", "discard"):
            for form in ([], ["--json"]):
                # some letters are refused, which is code 1
                assert not leaks(run("deadletters", what, dead, *form, *where, code=int(what == "redrive")))
            found = json.loads(run("deadletters", what, dead, "--json", "--error", SECRET, *where))
            assert not [
                each for name in ("letters", "redriven", "discarded", "refused") for each in found.get(name, [])
            ]
        listed = json.loads(run("deadletters", "list", dead, "--json", *where))["letters"]
        assert [each["error"] for each in listed if each["error"] not in ("", "***")] == [
            "builtins.ValueError",
            "shop.Declined",
        ]
        for letter in LETTERS:
            for form in ([], ["--json"]):
                shown = run("deadletters", "show", dead, "--letter", letter, *form, *where)
                assert not leaks(shown)
                assert "harmless" in shown
        assert "trace: t17" in shown or '"t17"' in shown
        for form in ([], ["--json"], ["--lines"]):
            assert not leaks(run("records", dead, "--from", "earliest", *form, *where))
        assert "cannot be searched by key" in run("records", dead, "--key", "x", *where, code=2)
    assert not leaks(caplog.text)


@contextlib.contextmanager
def server(*words: str, cwd: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the address of a server, and the lines of its log; these are complete after the block."""
    log: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "allocator.cli", *words],
        cwd=cwd,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.append(line)
            found = re.search(r"(http://[\d.:]+)/", line)
            if found:
                yield found[1], log
                break
        else:
            pytest.fail("".join(log))
    finally:
        process.terminate()
        log.extend(process.stdout)
        process.wait()


def fetched(url: str, body: Any = None) -> str:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.mark.parametrize("kind", ["operators", "nobody", "nobody-unmasked", "daemon", "daemon-nobody"])
def test_no_page_shows_what_masks_or_nobody_hide(
    kind: str, dead: str, kafka_cluster: LocalCluster, group: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    section = '[web]\nport = 0\ntoken = "' + TOKEN + '"\n'
    if kind.startswith("daemon"):
        access = 'access = "nobody"\n' if kind == "daemon-nobody" else ""
        words = ["run", str(settings(tmp_path, kafka_cluster, group, dead, access + section))]
    else:
        readers, _, unmasked = kind.partition("-")
        masked = [] if unmasked else [part for mask in MASKS for part in ("--mask", mask)]
        words = ["web", "--brokers", kafka_cluster.bootstrap, "--kafka-group", group, "--port", "0"]
        words += ["--token-file", str(token), "--history", "none", "--records", readers, *masked]
    with server(*words, cwd=tmp_path) as (url, log):
        letters = f"{url}/api/deadletters/{dead}"
        shown = []
        for what in ("list", "redrive", "discard"):
            shown.append(fetched(f"{letters}/{what}", {}))
            assert json.loads(shown[-1])["count"] == (1 if what == "redrive" else len(LETTERS))
            for part in (SECRET, "4111", "declined"):
                assert json.loads(fetched(f"{letters}/{what}", {"error": part}))["count"] <= (part == "declined")
        shown += [fetched(f"{letters}/show", {"letter": letter}) for letter in LETTERS]
        for query in ("from=earliest", "from=earliest&value_format=text", "from=earliest&key=x"):
            shown += [fetched(f"{url}/api/topics/{dead}/{what}?{query}") for what in ("records", "records.jsonl")]
        if kind == "operators":
            assert "harmless" in shown[-6], "records are shown"
        shown.append(fetched(f"{url}/api/audit"))
        assert not [text for text in shown if leaks(text)]
    # the log has the requests, which name what their user looked for
    assert not leaks("".join(line for line in log if "requested by" not in line))
