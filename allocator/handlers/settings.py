"""Declares the kind, the default and the text of each setting of `Consumer.process` and of the daemon's handler."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from allocator.core.settings import DEFAULT, Flag, Number, Setting, Text, Texts, Whole, check_topic
from allocator.errors import ConfigError
from allocator.types import Ordering, ResultsMode, Workers

_ERRORS: Final = Texts("a list of error classes")
_SECONDS: Final = Number(0, 86400, above=True)
_DELAY: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")


def parse_delay(text: str) -> int:
    """Returns the seconds of "30s", "10m", "1h" or "1d". Raises ConfigError outside of 1 second to 30 days."""
    found = _DELAY.fullmatch(text)
    seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]] if found is not None else 0
    if not 0 < seconds <= 30 * 86400:
        raise ConfigError(f"{text!r} is not a delay: write a whole number with s, m, h or d, from 1s to 30d")
    return seconds


HANDLING: Final[Mapping[str, Setting]] = {
    "ordering": Setting(
        Text(get_args(Ordering)),
        "partition",
        "The records that are handled one after the other: those of a `partition`, those of a `key` in a partition, or "
        "`none`. With `key`, records without a key have no order.",
    ),
    "concurrency": Setting(
        Whole(1, 1024),
        8,
        "Maximum number of concurrent handler calls: partitions with ordering `partition`, otherwise records. Higher: "
        "more threads or open calls; lower: records wait longer; 1: one record at a time.",
    ),
    "workers": Setting(
        Text(get_args(Workers)),
        "threads",
        "Runs a plain handler in `threads`, or in `concurrency` `processes`, for handlers that keep a CPU busy; then "
        "the handler must be a function of a module. Coroutines always run on the loop.",
    ),
    "in_hand_bytes": Setting(
        Whole(1, 2**40, unit="bytes"),
        67_108_864,
        "Maximum bytes of all batches with unfinished records, including what they decompress to. A partition without "
        "unfinished records may always start one batch. Higher: more memory; lower: fewer records are handled at once.",
    ),
    "retries": Setting(
        Whole(0, 1_000_000),
        5,
        "Number of further attempts after a failed call. Higher: survives longer outages; lower: a failing record "
        "delays others less; 0: none.",
    ),
    "retry_backoff_s": Setting(
        Number(0, 86400),
        0.5,
        "Seconds before the first retry. The delay doubles for each further retry up to the maximum, and is "
        "shortened at random by up to half, so that members do not retry at the same time.",
    ),
    "retry_backoff_max_s": Setting(Number(0, 86400), 30.0, "Maximum seconds before a retry."),
    "retry_limit_s": Setting(
        _SECONDS,
        None,
        "Seconds after the first failure of a record until its last attempt. None: only `retries` limits the attempts.",
    ),
    "retry_on": Setting(
        _ERRORS,
        None,
        "Error classes after which a record is handled again, such as `ValueError` or `package.module.Error`. None: "
        "all. If several lists name a class of an error, the nearest class decides.",
    ),
    "dead_letter_on": Setting(
        _ERRORS, None, "Error classes after which a record becomes a dead letter at once. Needs `dead_letter_topic`."
    ),
    "skip_on": Setting(_ERRORS, None, "Error classes after which a record is skipped and logged."),
    "stop_on": Setting(
        _ERRORS,
        None,
        "Error classes after which the processing stops at once. The next start handles the record again.",
    ),
    "retry_topics": Setting(
        Texts('a list of delays such as "30s", "10m", "1h", "1d"', check=parse_delay),
        None,
        "Delays of retry topics. A record whose `retries` are used up waits in the topic `<group>.retry-<delay>` for "
        "one more attempt, and then in the topic of the next delay. After the last topic it becomes a dead letter. "
        "Needs `dead_letter_topic`.",
    ),
    "create_retry_topics": Setting(
        Flag(), False, "true: missing retry topics are created at the start. false: a missing retry topic is an error."
    ),
    "dead_letter_topic": Setting(
        Text(check=check_topic, what="a topic"),
        None,
        "The topic for records that cannot be handled. Not set: the processing stops at such a record instead.",
    ),
    "results": Setting(
        Text(get_args(ResultsMode)),
        "at-least-once",
        "When the records that a handler returns (`Produce`) are written. `at-least-once`: before its record is done. "
        "`exactly-once`: in a transaction with its offset, in the order of the log (Kafka 0.11 and newer); all members "
        "of the group must set it.",
    ),
    "drain_timeout_s": Setting(
        Number(0, 86400),
        30.0,
        "Seconds that running calls may take when a partition is revoked or the processing stops. After that, "
        "coroutines are cancelled and processes killed. A call in a thread keeps its partition until it ends. "
        "Higher: other members wait longer for the partition; lower: more calls are cut off, and the next owner "
        "handles their records again.",
    ),
    "commit_interval_s": Setting(_SECONDS, DEFAULT["auto_commit_interval_s"], "Seconds between commits."),
}
"""The settings of `Consumer.process` and of the daemon's handler."""

HANDLING_DEFAULT: Final[Mapping[str, Any]] = {name: each.default for name, each in HANDLING.items()}
"""Name -> default, for signatures and fields."""
