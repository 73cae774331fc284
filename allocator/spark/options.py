"""The options of `format("allocator")`: one table of names, one of Spark's own connector's names for them.

Case, dots and underscores do not matter: `starting_offsets`, `startingOffsets` and `startingoffsets` are one option.
Every fault is reported at once, before any broker is asked anything.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from allocator.assignors import resolve
from allocator.client.connection import parse_addresses
from allocator.client.security import KEYS, check_security
from allocator.consumer.settings import MASK, Faults, Flag, Number, SettingKind, Text, Texts, Whole, setting
from allocator.errors import AllocatorError, ConfigError
from allocator.groups.zookeeper.znodes import GROUP_NAME
from allocator.spark import connector
from allocator.spark.ranges import (
    ALLOWED,
    COMMITTED,
    EARLIEST,
    LATEST,
    StartOrEnd,
    partitions_of,
    read_place,
    read_times,
)
from allocator.subscription.kinds import check_topic
from allocator.types import TopicPartition
from allocator.zookeeper.client import ZooKeeper

__all__ = ["Options", "own_name", "read_options"]

log = logging.getLogger(__name__)

# objects, which no option can carry
_NO_TEXT = {"ssl_context", "sasl_oauth_token_provider"}
SECURITY = {f"security.{key}": key for key in KEYS if key not in _NO_TEXT}
SECRETS = {"sasl_plain_password", "ssl_password"}

READ, STREAM, WRITE = "read", "readStream", "write"


class _Parsed:
    """A kind whose text is read by a function, which raises ValueError saying what is wrong."""

    def __init__(self, allowed: str, function: Any) -> None:
        self.allowed = allowed
        self.read = function

    def parse(self, text: str) -> str:
        return text


def _address(text: str) -> str | None:
    try:
        parse_addresses([text])
    except ConfigError as error:
        return str(error).removeprefix("brokers: ")
    return None


def _topic(text: str) -> str | None:
    try:
        check_topic(text)
    except ConfigError as error:
        return str(error)
    return None


def _ensemble(text: str) -> str | None:
    try:
        ZooKeeper(text)
    except ConfigError as error:
        return str(error)
    return None


def _pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        return str(error)
    return None


def _group(text: str) -> str | None:
    return None if GROUP_NAME.match(text) and text not in (".", "..") else "no '/', no control character"


def _start(text: str) -> StartOrEnd:
    return read_place(text, (EARLIEST, LATEST, COMMITTED))


def _end(text: str) -> StartOrEnd:
    place = read_place(text, (LATEST,))
    if EARLIEST in place.each.values():
        raise ValueError("-2 (earliest) is no end to read to")
    return place


_START = _Parsed(ALLOWED, _start)
_END = _Parsed(ALLOWED.replace("earliest, latest, committed", LATEST), _end)
_TIME = _Parsed("a time (milliseconds since the epoch, or ISO 8601 with its zone), or JSON of times", read_times)


@dataclass(frozen=True)
class Options:
    """All options, checked. The comment says what more and what less of it does."""

    # some brokers of the cluster, "host:port,host:port"; the others are learnt from them
    brokers: tuple[str, ...] = setting(Texts('"host:port,host:port"', _address))
    # what to read: topics by name, or
    topics: Optional[tuple[str, ...]] = setting(Texts("topics, with commas between them", _topic), None)
    # topics whose whole name the regular expression matches, new ones too, or
    topics_pattern: Optional[str] = setting(Text(check=_pattern, what="a regular expression"), None)
    # single partitions: {"orders": [0, 1]}
    assign: Optional[tuple[TopicPartition, ...]] = setting(
        _Parsed('JSON such as {"orders": [0, 1]}', partitions_of), None
    )
    # whose committed offsets are read and written
    group: Optional[str] = setting(Text(check=_group, what="a name of 1 to 249 characters"), None)
    # default: earliest for a batch, latest for a new stream; a checkpoint comes before it. "committed" begins where
    # the group stands, and at the earliest record of a partition of which it committed nothing
    starting_offsets: Optional[StartOrEnd] = field(default=None, metadata={"kind": _START})
    # as above, by time: one for all partitions, or JSON of times by partition
    starting_timestamps: Optional[StartOrEnd] = field(default=None, metadata={"kind": _TIME})
    # batch only; default latest: what is there when the batch is planned
    ending_offsets: Optional[StartOrEnd] = field(default=None, metadata={"kind": _END})
    ending_timestamps: Optional[StartOrEnd] = field(default=None, metadata={"kind": _TIME})
    # where a time to begin at is later than every record: "error" (default), or the partition's end, which a time to
    # end at always means there
    timestamp_strategy: str = setting(Text(("error", "latest")), "error")
    # records of one micro-batch, shared out by what each partition has; more: fewer, larger batches
    max_offsets_per_trigger: Optional[int] = setting(Whole(1, 2**62), None)
    # tasks at least: large partitions are split by offsets; more: more tasks at once, each with its own connection
    min_partitions: Optional[int] = setting(Whole(1, 1_000_000), None)
    # records of one task at most (by offsets); less: more, shorter tasks
    max_records_per_partition: Optional[int] = setting(Whole(1, 2**62), None)
    # stream only. "after_batch": each finished micro-batch commits to the group, so that lag monitors and plain
    # consumers see how far it is; "never" leaves the group alone
    commit: str = setting(Text(("never", "after_batch")), "never")
    # true (default): offsets that are gone (retention, a topic made anew) are an error; false: they are passed over
    fail_on_data_loss: bool = setting(Flag(), True)
    # true adds the column headers
    include_headers: bool = setting(Flag(), False)
    # "read_uncommitted" (default) also gives records of transactions that are open or were aborted
    isolation_level: str = setting(Text(("read_uncommitted", "read_committed")), "read_uncommitted")
    # of the executors: replicas in the same rack are read, where brokers select them (KIP-392)
    rack: Optional[str] = setting(Text(), None)
    # seconds, default 60: a task that reads nothing for so long fails, naming its partition; more: longer outages of
    # brokers are waited for; less: Spark retries it sooner
    timeout_s: float = setting(Number(0, 86400, above=True), 60.0)
    # bytes of one fetch, and about of one Arrow batch, default 8 MiB; more: memory; less: more round trips. Brokers
    # before 0.10.1 cannot send a record that is larger
    fetch_bytes: int = setting(Whole(1024, unit="bytes"), 8 << 20)
    # ZooKeeper, "host:port,host:port/chroot": looked at for members of the group before anything is committed to it
    zookeeper: Optional[str] = setting(Text(check=_ensemble, what='"host:port,host:port/chroot"'), None)
    # where groups stand in ZooKeeper
    zookeeper_root: str = setting(Text(what="an absolute path"), "/allocator")
    # stream only. "zookeeper": the query is a member of the group and reads the partitions that it is given, beside
    # other members; it commits always. "none" (default) reads all partitions
    membership: str = setting(Text(("none", "zookeeper")), "none")
    # of the member: relative capacity, for allocator functions that heed it
    weight: float = setting(Number(0, 1e6, above=True, unit="relative capacity"), 1.0)
    # of the member: allocator functions that it can work with, the preferred first; default naive
    assignor: Optional[tuple[str, ...]] = setting(Texts("allocator functions, with commas between them"), None)
    # of the member: seconds, default 30; more: the partitions of a crashed query wait longer
    session_timeout_s: float = setting(Number(1, 3600), 30.0)
    # of the member: how the others see it; default: made from the host's name
    client_id: Optional[str] = setting(Text(), None)
    # where records are written to, whatever a column `topic` says; without it, that column does it record by record
    topic: Optional[str] = setting(Text(check=_topic, what="a topic"), None)
    # of what is written
    compression: str = setting(Text(("none", "gzip", "snappy", "lz4", "zstd")), "none")
    # TLS, SASL and proxy settings, as `security.<name of kafka-python>`
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def start(self) -> StartOrEnd | None:
        return self.starting_offsets or self.starting_timestamps

    @property
    def end(self) -> StartOrEnd | None:
        return self.ending_offsets or self.ending_timestamps


# what has no meaning elsewhere; not named: everywhere
ONLY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("topics", "topics_pattern", "assign", "starting_offsets", "starting_timestamps"), (READ, STREAM)),
    **dict.fromkeys(("ending_offsets", "ending_timestamps"), (READ,)),
    **dict.fromkeys(("min_partitions", "max_records_per_partition", "fail_on_data_loss"), (READ, STREAM)),
    **dict.fromkeys(("max_offsets_per_trigger", "membership"), (STREAM,)),
    "topic": (WRITE,),
}
_FIELDS = {f.name: f for f in dataclasses.fields(Options) if "kind" in f.metadata}


def read_options(given: Mapping[str, str], use: str | None = None) -> Options:
    """The options of a reader or writer. Raises ConfigError with every fault.

    `use`: what they are for (READ, STREAM, WRITE), once that is known; what that cannot do is a fault too.
    """
    faults = Faults('format("allocator")')
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for name, text in given.items():
        option = _option(name, faults)
        if option is None:
            continue
        if option in found and found[option] != text:
            faults.add(option, f"{names[option]} and {name} are the same option and differ; give one of them")
            continue
        found[option], names[option] = text, name
    found.update(_java_security(found, names, faults))
    values: dict[str, Any] = {}
    for option, text in found.items():
        if option in _FIELDS:
            value = _value(names[option], text, _FIELDS[option].metadata["kind"], faults, option)
            if value is not None:
                values[option] = value
    values["security"] = _security(found, names, faults)
    if "brokers" not in found:
        faults.add("brokers", 'brokers is missing: .option("brokers", "host:port,host:port")')
    options = Options(**{"brokers": (), **values})
    _check_together(options, names, use, faults)
    faults.raise_if_any()
    return options


def _normal(name: str) -> str:
    return re.sub(r"[._]", "", name.lower())


_BY_NAME = {
    **{_normal(name): name for name in (*_FIELDS, *SECURITY)},
    **{_normal(name): option for name, option in connector.NAMES.items()},
}
_IGNORED = {_normal(name) for name in connector.WITHOUT_EFFECT}
_SHOWN = [*_FIELDS, *SECURITY, *connector.NAMES, *connector.WITHOUT_EFFECT]


def own_name(name: str) -> str:
    """The name here of an option, whichever of its names is given; one that is unknown is returned as it is."""
    return _BY_NAME.get(_normal(name), name)


def _option(name: str, faults: Faults) -> str | None:
    normal = _normal(name)
    if normal in _BY_NAME:
        return _BY_NAME[normal]
    if normal == "checkpointlocation":
        return None  # Spark's own, which it hands to sinks as well
    if normal in _IGNORED:
        log.warning("option %s has no effect here", name)
        return None
    shown = {known.lower(): known for known in _SHOWN}
    near = difflib.get_close_matches(name.lower(), shown, 1, cutoff=0.7)
    hint = f"did you mean {shown[near[0]]}?" if near else f"options are {', '.join(_FIELDS)}"
    hint = connector.INSTEAD.get(name.lower(), hint)
    faults.add(name, f"{name} is not an option; {hint}")
    return None


def _value(name: str, text: str, kind: SettingKind, faults: Faults, option: str) -> Any:
    try:
        return kind.read(kind.parse(text))
    except ValueError as error:
        why = str(error)
        plain = not why or re.match(r"invalid literal|could not convert", why)
        shown = text if len(text) <= 120 else text[:117] + "..."
        faults.add(option, f"{name} = {shown}: must be {kind.allowed}" + ("" if plain else f"; {why}"))
        return None


def _java_security(found: Mapping[str, str], names: dict[str, str], faults: Faults) -> dict[str, str]:
    """The settings that only Java's clients have, in kafka-python's terms."""
    translated = {}
    for option, text in found.items():
        if option in connector.JAVA:
            try:
                made = connector.JAVA[option](text)
            except ValueError as error:
                faults.add(option, f"{names[option]}: {error}")
                continue
            translated.update({f"security.{key}": value for key, value in made.items()})
            names.update((f"security.{key}", names[option]) for key in made)
    return translated


def _security(found: Mapping[str, str], names: Mapping[str, str], faults: Faults) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option, key in SECURITY.items():
        if option not in found:
            continue
        values[key] = found[option]
        if key == "ssl_check_hostname":
            values[key] = _value(names[option], found[option], Flag(), faults, option)
    try:
        return check_security(values)
    except ConfigError as error:
        message = str(error)
        for key in SECRETS & values.keys():
            message = message.replace(str(values[key]), MASK)
        faults.add("security", message)
        return {}


def _check_member(options: Options, names: Mapping[str, str], fault: Any) -> None:
    if options.membership == "none":
        for option in ("weight", "assignor", "session_timeout_s", "client_id"):
            if option in names:
                fault(option, f"{names[option]} is for a member: give membership = zookeeper, or leave it out")
        return
    for option in ("group", "zookeeper"):
        if getattr(options, option) is None:
            fault(option, f"membership = zookeeper needs {option}")
    if options.assign is not None:
        fault("assign", "assign chooses partitions by hand, and membership = zookeeper has the group do it")
    if options.commit == "never" and "commit" in names:
        fault("commit", "commit = never: a member commits always, as the next owner of a partition begins there")
    try:
        for name in options.assignor or ():
            resolve(name)
    except AllocatorError as error:
        fault("assignor", str(error))


def _check_together(options: Options, names: Mapping[str, str], use: str | None, faults: Faults) -> None:
    def fault(option: str, why: str) -> None:
        if option not in faults.keys:
            faults.add(option, why)

    _check_member(options, names, fault)
    for one, other in (("starting_offsets", "starting_timestamps"), ("ending_offsets", "ending_timestamps")):
        if one in names and other in names:
            fault(other, f"{names[one]} and {names[other]} exclude each other; give one of them")
    for option in names:
        only = ONLY.get(option)
        if use is not None and only is not None and use not in only:
            fault(option, f"{names[option]} has no meaning for {use}; leave it out (it is for {' and '.join(only)})")
    if options.group is None and "group" not in faults.keys:
        if options.commit == "after_batch":
            fault("commit", "commit = after_batch needs the group to commit for: give group")
        if options.start is not None and options.start.everywhere == COMMITTED:
            fault("starting_offsets", f"{names['starting_offsets']} = committed needs the group that did: give group")
    if use == READ and options.commit == "after_batch":
        fault("commit", "commit = after_batch is for readStream: a batch does not know when its records are done")
    if use not in (READ, STREAM):
        return
    chosen = [name for name in ("topics", "topics_pattern", "assign") if name in names]
    if not chosen:
        fault("topics", "what is to be read? Give topics, topics_pattern or assign")
    elif len(chosen) > 1:
        fault("topics", f"{' and '.join(names[name] for name in chosen)} exclude each other; give one of them")
    wanted = None if options.assign is None else set(options.assign)
    for option in ("starting_offsets", "starting_timestamps", "ending_offsets", "ending_timestamps"):
        place: StartOrEnd | None = getattr(options, option)
        if place is None:
            continue
        strangers = sorted(
            tp
            for tp in place.named
            if (wanted is not None and tp not in wanted)
            or (options.topics is not None and tp.topic not in options.topics)
        )
        if strangers:
            some = ", ".join(f"{tp.topic}:{tp.partition}" for tp in strangers[:5])
            fault(option, f"{names[option]} speaks of {some}, which is not read")
