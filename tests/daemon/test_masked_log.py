"""With masks, the log of a daemon has no text of its records, whatever the errors of the handler quote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from allocator.testing import produce, wait_until
from tests.daemon.daemon_processes import HANDLERS, Setup, stopped

SECRET = "4929-1138"
KAFKA = {"zookeeper": {"hosts": None}, "group": {"membership": "kafka", "session_timeout_s": 15}}


def log_of_run(make: Callable[..., Setup], ends: Callable[[str], bool], *, masks: bool = True, **settings: Any) -> str:
    """Returns the log of a daemon that failed at six records, which a handler quoted in six ways."""
    it = make(partitions=1)
    produce(it.cluster.bootstrap, it.topic, [f'{{"card": "{SECRET}"'.encode()] * 6)
    handler = {"retries": 1, **settings.pop("handler")}
    if handler.get("dead_letter_topic"):
        handler["dead_letter_topic"] = make(partitions=1).topic
    records = {"masks": ["value.card"]} if masks else {}
    form = {"level": "debug", **settings}
    it.run(it.config(handler.pop("function", "quoting"), handler=handler, log=form, records=records, **KAFKA))
    path = it.directory / "log-0"
    wait_until(lambda: ends(path.read_text()), 60, "the daemon to fail at all records")
    stopped(it.processes[0])
    return path.read_text()


def lines_with_the_secret(log: str) -> list[str]:
    return [line[:300] for line in log.splitlines() if SECRET in line]


def counts(text: str) -> Callable[[str], bool]:
    return lambda log: log.count(text) >= 6


LETTERS = {"dead_letter_topic": True}
RUNS = {
    "dead letters": (counts("writing it to the dead-letter topic"), {"handler": LETTERS}),
    "as text": (counts("writing it to the dead-letter topic"), {"handler": LETTERS, "format": "text"}),
    "in tasks": (counts("writing it to the dead-letter topic"), {"handler": {"function": "quoting_task", **LETTERS}}),
    "in processes": (counts("writing it to the dead-letter topic"), {"handler": {"workers": "processes", **LETTERS}}),
    "skipped": (counts("skipping it"), {"handler": {"skip_on": ["ValueError", "LookupError", f"{HANDLERS}:Refused"]}}),
    "retried later": (
        counts("writing it to the retry topic"),
        {"handler": {"retry_topics": ["1m"], "create_retry_topics": True, **LETTERS}},
    ),
    "the end": (lambda log: "or set a dead-letter topic" in log, {"handler": {}}),
}


@pytest.mark.parametrize("run", list(RUNS))
async def test_the_log_has_no_text_of_a_record(make: Callable[..., Setup], run: str) -> None:
    ends, settings = RUNS[run]
    log = await asyncio.to_thread(lambda: log_of_run(make, ends, **settings))
    assert not lines_with_the_secret(log)
    assert "ValueError" in log, "the class of the error is told"
    if run != "retried later":
        assert "handlers_under_test.py" in log, "so is the place"
    if run not in ("retried later", "in processes"):  # a process returns the error without those before it
        for kind in ("Refused", "LookupError", "KeyError", "JSONDecodeError"):
            assert (kind in log) is (run != "the end"), kind
    assert ("Task exception was never retrieved" in log) is (run == "in tasks")


async def test_the_log_has_no_text_of_a_record_that_work_in_the_background_quotes(make: Callable[..., Setup]) -> None:
    def ends(log: str) -> bool:
        return log.count("never retrieved") >= 4 and log.count("Exception in callback") >= 2

    log = await asyncio.to_thread(lambda: log_of_run(make, ends, handler={"function": "quoting_background"}))
    assert not lines_with_the_secret(log)
    for kind in ("UnicodeDecodeError", "CalledProcessError", "ValueError", "LookupError", "JSONDecodeError"):
        assert kind in log, kind
    assert "handlers_under_test.py" in log


async def test_the_log_has_no_line_and_no_name_of_generated_code(make: Callable[..., Setup]) -> None:
    ends, settings = RUNS["as text"]
    handler = {"function": "quoting_generated", **LETTERS}
    log = await asyncio.to_thread(lambda: log_of_run(make, ends, **{**settings, "handler": handler}))
    assert not lines_with_the_secret(log)
    assert "made_" not in log
    assert "handlers_under_test.py" in log
    assert "<generated code>" in log


async def test_without_masks_the_log_has_the_texts(make: Callable[..., Setup]) -> None:
    ends, settings = RUNS["dead letters"]
    log = await asyncio.to_thread(lambda: log_of_run(make, ends, masks=False, **settings))
    assert len(lines_with_the_secret(log)) >= 6
