"""The options of `format("allocator")`, under this library's names and those of Spark's own connector.

Case, dots and underscores do not matter: `starting_offsets`, `startingOffsets` and `startingoffsets` are one option.
One error reports all faults, before any request to a broker.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from allocator.core.client import KEYS, check_security
from allocator.core.settings import (
    MASK,
    Faults,
    Flag,
    Number,
    Setting,
    Text,
    Texts,
    Whole,
    check_pattern_syntax,
    check_topic,
    default_client_id,
    setting,
    shared,
)
from allocator.core.text import partition_names
from allocator.errors import ConfigError
from allocator.spark import connector
from allocator.spark.ranges import (
    ALLOWED,
    COMMITTED,
    EARLIEST,
    LATEST,
    StartOrEnd,
    partitions_of,
    read_duration,
    read_place,
    read_times,
)
from allocator.types import TopicPartition

if TYPE_CHECKING:
    from allocator.core.consumer import MembershipConfig

log = logging.getLogger(__name__)

SECURITY = {f"security.{key}": key for key in KEYS if key != "ssl_context"}  # an option cannot contain an SSL context
SECRETS = {"sasl_oauth_client_secret", "sasl_plain_password", "ssl_password"}

READ, STREAM, WRITE = "read", "readStream", "write"


class _Parsed:
    """A setting kind with its own parser. The parser raises ValueError with the reason."""

    def __init__(self, allowed: str, function: Any) -> None:
        self.allowed = allowed
        self.read = function

    def parse(self, text: str) -> str:
        return text


_START = _Parsed(ALLOWED, partial(read_place, words=(EARLIEST, LATEST, COMMITTED)))
_END = _Parsed(
    ALLOWED.replace("earliest, latest, committed", LATEST).replace("starting", "ending"),
    partial(read_place, words=(LATEST,)),
)
_DELAY = _Parsed("a duration such as 500ms, 90s, 15m, 1h or 1d", read_duration)
_TIME = _Parsed("a time (milliseconds since the epoch, or ISO 8601 with its zone), or JSON of times", read_times)


@dataclass(frozen=True)
class Options:
    """The checked options of a reader or writer."""

    brokers: tuple[str, ...] = shared("brokers")
    topics: Optional[tuple[str, ...]] = setting(
        Texts("topics, separated by commas", check_topic), None, "The topics to read."
    )
    topics_pattern: Optional[str] = setting(
        Text(check=check_pattern_syntax, what="a regular expression"),
        None,
        "Instead of `topics`: all topics whose whole name matches this regular expression, including new topics. "
        "`subscribePattern` may match any part of the name.",
    )
    assign: Optional[tuple[TopicPartition, ...]] = setting(
        _Parsed('JSON such as {"orders": [0, 1]}', partitions_of),
        None,
        'Instead of `topics`: single partitions, such as `{"orders": [0, 1]}`.',
    )
    group: Optional[str] = shared("group", required=False)
    starting_offsets: Optional[StartOrEnd] = setting(
        _START,
        None,
        "`earliest`, `latest`, `committed`, or JSON by partition. Default: `earliest` for a batch, `latest` for a new "
        "stream; a checkpoint takes precedence. `committed` starts at the group's committed offset, or at the earliest "
        "record of a partition that has none.",
    )
    starting_timestamps: Optional[StartOrEnd] = setting(
        _TIME, None, "Instead of `starting_offsets`: one time for all partitions, or JSON of times by partition."
    )
    ending_offsets: Optional[StartOrEnd] = setting(
        _END, None, "Batches only. Default `latest`: the end when the batch is planned."
    )
    ending_timestamps: Optional[StartOrEnd] = setting(
        _TIME, None, "Instead of `ending_offsets`. A time after every record means the end."
    )
    timestamp_strategy: str = setting(
        Text(("error", "latest")),
        "error",
        "If the start time is later than every record: `error`, or `latest` to start at the partition's end.",
    )
    max_offsets_per_trigger: Optional[int] = setting(
        Whole(1, 2**62),
        None,
        "Maximum number of records in a micro-batch, divided in proportion to the partitions' lag. Higher: fewer, "
        "larger batches; lower: less work is repeated after a crash.",
    )
    min_offsets_per_trigger: Optional[int] = setting(
        Whole(1, 2**62),
        None,
        "A micro-batch waits for this number of records, but at most for `max_trigger_delay`. Higher: fewer, larger "
        "batches; lower: records are processed sooner.",
    )
    max_trigger_delay: float = setting(
        _DELAY,
        900.0,
        "How long after the previous micro-batch the next one waits for `min_offsets_per_trigger`: a duration such as "
        "`90s`, `15m` or `1h`, or milliseconds without a unit, as in Spark's connector.",
    )
    min_partitions: Optional[int] = setting(
        Whole(1, 1_000_000),
        None,
        "Minimum number of tasks: large partitions are split by offsets. Higher: more tasks run at the same time, each "
        "with its own connections.",
    )
    max_partitions: Optional[int] = setting(
        Whole(1, 1_000_000),
        None,
        "Maximum number of tasks: small partitions share one, and each row keeps its partition and offset. Higher: "
        "more tasks run at the same time; lower: less overhead, as a task costs about 0.1 s of a core. Default: two "
        "tasks for each core, fewer for a small batch (one for each 100 records), or one for each million records if "
        "that is more. The default needs the number of cores, from a `local` master, `spark.default.parallelism`, or "
        "`spark.executor.instances` and `spark.executor.cores` without dynamic allocation; otherwise it is one task "
        "for each partition. Cannot be combined with `max_records_per_partition`.",
    )
    max_records_per_partition: Optional[int] = setting(
        Whole(1, 2**62),
        None,
        "Maximum number of offsets in a task. Higher: fewer, longer tasks; lower: more, shorter tasks.",
    )
    commit: str = setting(
        Text(("never", "after_batch")),
        "never",
        "Streams only. `after_batch`: each finished micro-batch commits to the group, so that lag monitors and plain "
        "consumers see its progress. `never` commits nothing.",
    )
    fail_on_data_loss: bool = setting(
        Flag(),
        True,
        "True: offsets that the topic lost (retention, a recreated topic) are an error. False: they are skipped.",
    )
    include_headers: bool = setting(Flag(), False, "True adds the column `headers`.")
    isolation_level: str = shared("isolation_level")
    rack: Optional[str] = shared("rack", text="The rack of the executors, to fetch from replicas in it.")
    timeout_s: float = setting(
        Number(0, 86400, above=True),
        60.0,
        "Seconds without a record after which a task fails and names its partition. Higher: tolerates longer outages "
        "of brokers; lower: Spark retries sooner.",
    )
    fetch_bytes: int = setting(
        Whole(1024, unit="bytes"),
        8 << 20,
        "Size of a fetch in bytes, and roughly of an Arrow batch. Higher: more memory; lower: more round trips. "
        "Brokers before 0.10.1 cannot send a larger record.",
    )
    zookeeper: Optional[str] = shared(
        "zookeeper", text="A query that commits first checks there that the group has no members."
    )
    zookeeper_root: str = shared("root")
    membership: str = setting(
        Text(("none", "zookeeper")),
        "none",
        "Streams only. `zookeeper`: the query is a member of the group beside others, reads the partitions that are "
        "assigned to it, and always commits. `none`: it reads all partitions.",
    )
    weight: float = shared("weight")
    assignor: Optional[tuple[str, ...]] = shared("assignor")
    session_timeout_s: float = shared("session_timeout_s")
    topic: Optional[str] = setting(
        Text(check=check_topic, what="a topic"),
        None,
        "Writing: the topic of all records. Without it, a column `topic` names the topic of each record.",
    )
    compression: str = setting(
        Text(("none", "gzip", "snappy", "lz4", "zstd")), "none", "Writing: the compression of batches."
    )
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """TLS, SASL and proxy settings, given as `security.<name of kafka-python>`."""
    cores: Optional[int] = None
    """Number of cores of the session, if known. Users cannot set it."""

    @property
    def start(self) -> StartOrEnd | None:
        return self.starting_offsets or self.starting_timestamps

    @property
    def end(self) -> StartOrEnd | None:
        return self.ending_offsets or self.ending_timestamps

    def wants(self, tp: TopicPartition) -> bool:
        """Returns whether `assign`, `topics` or `topics_pattern` selects this partition."""
        if self.assign is not None:
            return tp in self.assign
        if self.topics is not None:
            return tp.topic in self.topics
        return re.fullmatch(self.topics_pattern or "", tp.topic) is not None


# option -> the uses to which it applies; options that are not listed apply to all
ONLY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("topics", "topics_pattern", "assign", "starting_offsets", "starting_timestamps"), (READ, STREAM)),
    **dict.fromkeys(("ending_offsets", "ending_timestamps"), (READ,)),
    **dict.fromkeys(
        ("min_partitions", "max_partitions", "max_records_per_partition", "fail_on_data_loss"), (READ, STREAM)
    ),
    **dict.fromkeys(
        ("max_offsets_per_trigger", "min_offsets_per_trigger", "max_trigger_delay", "membership"), (STREAM,)
    ),
    "topic": (WRITE,),
}
EXCLUSIVE = (
    ("starting_offsets", "starting_timestamps"),
    ("ending_offsets", "ending_timestamps"),
    ("topics", "topics_pattern", "assign"),
    ("max_partitions", "max_records_per_partition"),
)
_FIELDS = {f.name: f for f in dataclasses.fields(Options) if "setting" in f.metadata}


def read_options(given: Mapping[str, str], use: str | None = None) -> Options:
    """Parses and checks the options of a reader or writer. Raises one ConfigError that lists all faults.

    If `use` is READ, STREAM or WRITE, an option that does not apply to it is also a fault.
    """
    faults = Faults('format("allocator")')
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for name, text in given.items():
        option = _option(name, faults)
        if option is None:
            continue
        if option in found and found[option] != text:
            faults.add(option, f"{names[option]} and {name} are the same option and differ; set one of them")
            continue
        found[option], names[option] = text, name
    found.update(_java_security(found, names, faults))
    values: dict[str, Any] = {}
    for option, text in found.items():
        if option in _FIELDS:
            value = _value(names[option], text, _FIELDS[option].metadata["setting"], faults, option)
            if value is not None:
                searched = _normal(names[option]) == "subscribepattern"
                values[option] = connector.anywhere(value) if searched else value
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
    """Returns this library's name of an option. Returns an unknown name unchanged."""
    return _BY_NAME.get(_normal(name), name)


def _option(name: str, faults: Faults) -> str | None:
    normal = _normal(name)
    if normal in _BY_NAME:
        return _BY_NAME[normal]
    # Spark passes some of its own options to sinks, and beside "provider" with CREATE TABLE
    if normal in ("checkpointlocation", "queryname", "owner") or name.startswith("option."):
        return None
    if normal in _IGNORED:
        log.warning("option %s has no effect here", name)
        return None
    shown = {known.lower(): known for known in _SHOWN}
    near = difflib.get_close_matches(name.lower(), shown, 1, cutoff=0.7)
    hint = f"did you mean {shown[near[0]]}?" if near else f"options are {', '.join(_FIELDS)}"
    hint = connector.INSTEAD.get(name.lower(), hint)
    faults.add(name, f"{name} is not an option; {hint}")
    return None


def _value(name: str, text: str, declared: Setting, faults: Faults, option: str) -> Any:
    try:
        return declared.parse(text)
    except ValueError as error:
        shown = text if len(text) <= 120 else text[:117] + "..."
        faults.add(option, f"{name} = {shown}: {error}")
        return None


def _java_security(found: Mapping[str, str], names: dict[str, str], faults: Faults) -> dict[str, str]:
    """Translates settings of Java's clients to those of kafka-python."""
    translated = {}
    for option, text in found.items():
        if option in connector.JAVA:
            try:
                own = connector.JAVA[option](text)
            except ValueError as error:
                faults.add(option, f"{names[option]}: {error}")
                continue
            translated.update({f"security.{key}": value for key, value in own.items()})
            names.update((f"security.{key}", names[option]) for key in own)
    return translated


def _security(found: Mapping[str, str], names: Mapping[str, str], faults: Faults) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option, key in SECURITY.items():
        if option not in found:
            continue
        values[key] = found[option]
        if key == "security_protocol":
            values[key] = found[option].upper()  # Java's clients ignore its case
        if key == "ssl_check_hostname":
            values[key] = _value(names[option], found[option], Setting(Flag(), None, ""), faults, option)
    try:
        return check_security(values)
    except ConfigError as error:
        shown = {key: names.get(option, option) for option, key in SECURITY.items()}
        secrets = {str(values[key]): MASK for key in SECRETS & values.keys() if values[key]}
        # in one pass, because a secret may be part of a name; the longest first, because a name may be part of a secret
        texts = sorted({**shown, **secrets}, key=len, reverse=True)
        pattern = "|".join(re.escape(text) if text in secrets else rf"\b{text}\b" for text in texts)
        message = re.sub(pattern, lambda found: {**shown, **secrets}[found[0]], str(error))
        # an option of Java may set several
        faults.add("security", re.sub(r"([^\s,]+)(?:, \1)+(?=\s)", r"\1", message))
        return {}


def _check_member(options: Options, names: Mapping[str, str], fault: Any) -> None:
    if options.membership == "none":
        for option in ("weight", "assignor", "session_timeout_s"):
            if option in names:
                fault(option, f"{names[option]} applies only to members: set membership = zookeeper, or omit it")
        return
    if options.assign is not None:
        fault("assign", "assign selects partitions, but with membership = zookeeper the group assigns them")
    if options.commit == "never" and "commit" in names:
        fault("commit", "commit = never: a member always commits, because the next owner of a partition starts there")
    if options.min_offsets_per_trigger is not None:
        fault(
            "min_offsets_per_trigger",
            f"{names['min_offsets_per_trigger']} does not apply to members: the group may move "
            "partitions between batches, and nobody reads them while a batch waits; omit it",
        )
    values = {**vars(options), "pattern": options.topics_pattern}
    for found in joining(options).faults():
        fault(_OPTION.get(found.settings[0], found.settings[0]), found.text(values))


# keyword of `Consumer` -> the option, where the names differ
_OPTION = {"pattern": "topics_pattern", "root": "zookeeper_root"}


def joining(options: Options) -> MembershipConfig:
    """Returns the membership of a stream that is a member of its group."""
    # imported here: each read starts Python processes that import this module, and few are members
    from allocator import ZooKeeper
    from allocator.core.consumer import MembershipConfig

    return MembershipConfig.of(
        ZooKeeper(options.zookeeper, root=options.zookeeper_root, session_timeout_s=options.session_timeout_s),
        group=options.group,
        client_id=default_client_id("spark"),
        topics=options.topics or (),
        pattern=options.topics_pattern and f"{connector.enclosed(options.topics_pattern)}\\Z",
        assignor=options.assignor,
        weight=options.weight,
        rack=options.rack,
        connect_timeout_s=options.timeout_s,
    )


def _check_together(options: Options, names: Mapping[str, str], use: str | None, faults: Faults) -> None:
    def fault(option: str, why: str) -> None:
        if option not in faults.keys:
            faults.add(option, why)

    _check_member(options, names, fault)
    for exclusive in EXCLUSIVE:
        given = [names[option] for option in exclusive if option in names]
        if len(given) > 1:
            fault(exclusive[-1], f"{' and '.join(given)} exclude each other; set one of them")
    for least, most in (("min_partitions", "max_partitions"), ("min_offsets_per_trigger", "max_offsets_per_trigger")):
        low, high = getattr(options, least), getattr(options, most)
        if low is not None and high is not None and low > high:
            fault(least, f"{names[least]} = {low} is more than {names[most]} = {high}")
    for option in names:
        only = ONLY.get(option)
        if use is not None and only is not None and use not in only:
            fault(option, f"{names[option]} does not apply to {use}; omit it (it is for {' and '.join(only)})")
    if options.group is None and "group" not in faults.keys:
        if options.commit == "after_batch":
            fault("commit", "commit = after_batch needs a group: set group")
        if options.start is not None and options.start.everywhere == COMMITTED:
            fault("starting_offsets", f"{names['starting_offsets']} = committed needs a group: set group")
    if use in (READ, WRITE) and options.commit == "after_batch":
        fault("commit", "commit = after_batch is for readStream: only a stream knows when its records are done")
    if use not in (READ, STREAM):
        return
    if not names.keys() & {"topics", "topics_pattern", "assign"}:
        fault("topics", "nothing to read: set topics, topics_pattern or assign")
    if "max_trigger_delay" in names and options.min_offsets_per_trigger is None:
        fault("max_trigger_delay", f"{names['max_trigger_delay']} delays nothing without min_offsets_per_trigger")
    if options.assign is None and options.topics is None:
        return
    for option in ("starting_offsets", "starting_timestamps", "ending_offsets", "ending_timestamps"):
        place: StartOrEnd | None = getattr(options, option)
        unread = [tp for tp in (place.each if place else ()) if not options.wants(tp)]
        if unread:
            fault(option, f"{names[option]} names {partition_names(unread)}, which is not read")
