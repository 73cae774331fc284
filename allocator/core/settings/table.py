"""Every setting of a consumer, declared once with its type, range, default and meaning.

`Consumer`, `ConsumerGroupConfig`, `GroupedConsumer`, the daemon's file and environment, the options of Spark and
docs/reference/settings.md take them from `SETTINGS`. A setting of only one of these is a dataclass field there,
declared with `setting`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Union, get_args

from allocator.core.errors import ConfigError
from allocator.core.settings.names import (
    MASK,
    check_path,
    check_pattern_syntax,
    check_topic,
    parse_address,
    parse_ensemble,
    url_origin,
    without_url_secrets,
)
from allocator.core.text.bounded_json import whole_number
from allocator.core.text.quoting import shown
from allocator.core.types import GroupProtocol, IsolationLevel, LoadSource, MembershipName, OffsetReset, OffsetStorage

REQUIRED: Final[Any] = dataclasses.MISSING
Check = Callable[[str], object]
"""Checks a text. Raises a ValueError with the reason if the text is wrong."""


# -- kinds of values ---------------------------------------------------------------------------------------------------


class SettingKind(Protocol):
    """The type and range of a setting."""

    @property
    def allowed(self) -> str:
        """The allowed values, as a phrase after "must be"."""

    def read(self, value: Any) -> Any:
        """Returns the typed value. Raises ValueError, with a text if it adds something to `allowed`."""

    def parse(self, text: str) -> Any:
        """Parses the text of an environment variable or of a Spark option. Raises ValueError."""
        return text


@dataclass(frozen=True)
class Text(SettingKind):
    """A non-empty text: one of `choices` if there are any, and accepted by `check` if it is given."""

    choices: tuple[str, ...] = ()
    check: Check | None = None
    what: str = "text"

    @property
    def allowed(self) -> str:
        return " or ".join(json.dumps(choice) for choice in self.choices) if self.choices else self.what

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not value or (self.choices and value not in self.choices):
            raise ValueError("it is empty" if value == "" else _did_you_mean(value, self.choices))
        if self.check:
            self.check(value)
        return value


@dataclass(frozen=True)
class Texts(SettingKind):
    """A list of texts, or one text with commas between them."""

    what: str = "a list of texts"
    check: Check | None = None

    @property
    def allowed(self) -> str:
        return self.what

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (str, list, tuple)) or not all(isinstance(item, str) for item in value):
            raise ValueError
        items = self.items(value)
        repeated = sorted({item for item in items if items.count(item) > 1})
        if repeated:
            raise ValueError(f"it has {repeated[0]!r} twice")
        return items

    def items(self, value: Collection[Any]) -> tuple[str, ...]:
        """Returns the texts in `value`, each checked."""
        items = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)
        if not items or "" in items:
            raise ValueError("it has an empty entry" if items else "it is empty")
        for item in items:
            if self.check:
                self.check(item)
        return items


@dataclass(frozen=True)
class Addresses(Texts):
    """Addresses of brokers, in any collection, or in one text with commas between them."""

    what: str = '"host:port,host:port", or a list of "host:port"'
    check: Check | None = parse_address

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, Collection) or isinstance(value, (bytes, Mapping)):
            raise ValueError
        return self.items(value)


@dataclass(frozen=True)
class Number(SettingKind):
    """A number, such as seconds. Whole numbers are allowed."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False
    """True if the value must be greater than `low`; False if `low` itself is allowed."""
    unit: str = "seconds"

    @property
    def allowed(self) -> str:
        edge = f"more than {self.low:g}" if self.above else f"at least {self.low:g}"
        return f"a number ({self.unit}), {edge}" + (f", at most {self.high:g}" if self.high < math.inf else "")

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError
        try:
            number = float(value)
        except OverflowError:  # an integer of more than 308 digits
            raise ValueError from None
        if not math.isfinite(number):
            raise ValueError
        if number < self.low or number > self.high or (self.above and number == self.low):
            if self.unit == "seconds" and self.low < number / 1000 <= self.high:
                raise ValueError(f"{number:g} milliseconds are {number / 1000:g} seconds")
            raise ValueError
        return number

    def parse(self, text: str) -> float:
        return float(text)


@dataclass(frozen=True)
class Whole(SettingKind):
    """A whole number: a count, or bytes."""

    low: int = 0
    high: int = 2**31 - 1
    unit: str = ""

    @property
    def allowed(self) -> str:
        return f"a whole number{f' ({self.unit})' if self.unit else ''} from {self.low} to {self.high}"

    def read(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise ValueError
        return value

    def parse(self, text: str) -> int:
        return int(text)


@dataclass(frozen=True)
class Flag(SettingKind):
    allowed: str = "true or false"

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"


@dataclass(frozen=True)
class Table(SettingKind):
    """A mapping of settings of another library, which checks them."""

    allowed: str = "a dict"

    def read(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError
        return value


@dataclass(frozen=True)
class Reset(SettingKind):
    """A start position: a word, in upper or lower case, or a time."""

    words: tuple[str, ...] = get_args(OffsetReset)

    @property
    def allowed(self) -> str:
        return f"{Text(self.words).allowed} or a time (milliseconds since the epoch)"

    def read(self, value: Any) -> Union[str, int]:
        if isinstance(value, int) and not isinstance(value, bool):
            return Whole(high=2**62).read(value)
        Text(self.words).read(value.lower() if isinstance(value, str) else value)
        return str(value)

    def parse(self, text: str) -> Union[str, int]:
        number = whole_number(text)
        return text if number is None else number


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One setting. A default of None means "not used"."""

    kind: SettingKind
    default: Any
    text: str
    """The meaning, for the docs."""
    optional: bool = False
    """Whether None is allowed although it is not the default."""
    secret: bool = False
    addresses: bool = False
    """Whether it has addresses: a user may write a password before an "@", although it does not belong there."""
    url: bool = False
    """Whether it is an http URL that may have a secret: only its scheme and host are shown."""

    def accepts_none(self) -> bool:
        return self.optional or self.default is None

    def read(self, value: Any) -> Any:
        """Returns the typed value. Raises ValueError."""
        return self._checked(value, lambda: self.kind.read(value))

    def parse(self, text: str) -> Any:
        """Reads the text of an environment variable or of a Spark option. Raises ValueError as `read` does."""
        return self._checked(text, lambda: self.kind.read(self.kind.parse(text)))

    def quoted(self, value: Any, write: Callable[[Any], str] = shown) -> str:
        """Returns the value as an error may quote it. `write` writes a value that is no secret. The
        secrets of URLs are masked."""
        if self.url:
            return write(url_origin(value))
        return MASK if self._hides(value) else without_url_secrets(write(value))

    def _hides(self, value: Any) -> bool:
        return self.secret or (self.addresses and "@" in str(value))

    def _checked(self, value: Any, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except ValueError as error:
            said = str(error)
            # leave out Python's own texts of `int("x")` and `float("x")`: `allowed` already says what is needed
            more = said and not self._hides(value) and not re.match(r"invalid literal|could not convert", said)
            raise ValueError(f"must be {self.kind.allowed}" + (f"; {said}" if more else "")) from None


SECONDS: Final = Number(0, 86400, above=True)
BYTES: Final = Whole(1, unit="bytes")
_NAME: Final = Text(check=str.encode)  # raises UnicodeEncodeError, a ValueError, for text that no request can carry

SETTINGS: Final[Mapping[str, Setting]] = {
    "brokers": Setting(
        Addresses(),
        REQUIRED,
        "Some brokers of the cluster, from which the client learns the others. More: it starts although some are down.",
        addresses=True,
    ),
    "group": Setting(
        _NAME,
        REQUIRED,
        "Name under which members share partitions and commit offsets. None (only with `fixed`): nothing is committed.",
        optional=True,
    ),
    "topics": Setting(
        Texts("a list of topics", check_topic), None, "Topics to subscribe to. Excludes `pattern` and `partitions`."
    ),
    "pattern": Setting(
        Text(check=check_pattern_syntax, what="a regular expression"),
        None,
        "Subscribes to all topics whose name matches from its beginning, future ones too. With `zookeeper`: RE2's "
        "syntax, without lookaround and backreferences; needs `zk-partition-allocator[patterns]`.",
    ),
    "membership": Setting(
        Text(get_args(MembershipName)),
        "zookeeper",
        "Protocol that assigns partitions. `zookeeper`: this project's own, on any cluster. `kafka`: Kafka's group "
        "protocol (brokers from 0.9), also beside other clients with the same assignor. `fixed`: all partitions of the "
        "topics, or chosen ones. `kiel`, `consumers`, `pykafka`: a group with members of kiel 0.9.3, of Kafka's client "
        "of 0.8, or of pykafka's BalancedConsumer.",
    ),
    "assignor": Setting(
        Texts("a list of assignors"),
        None,
        "Assignors that this member offers, most preferred first: a name, `package.module:function`, or in Python a "
        "callable. None: `naive`. Other clients also have `range`, `roundrobin`, `sticky` and `cooperative-sticky`; "
        "`ConsumerGroup` offers the first two. With `group_protocol` `consumer`: an assignor of the broker.",
    ),
    "client_id": Setting(
        _NAME,
        None,
        "Name of this member in lists and logs; several may share it. None: created from host and process id.",
    ),
    "weight": Setting(
        Number(0, 1e6, above=True, unit="relative capacity"),
        1.0,
        "Relative capacity, for assignors that consider it. Higher: more partitions.",
    ),
    "rack": Setting(
        _NAME,
        None,
        "Rack of this process, as the brokers name it. The consumer reads from replicas in this rack (KIP-392), and "
        "assignors consider it. Members of kafka-go cannot read the data of a member with a rack.",
    ),
    "connect_timeout_s": Setting(
        SECONDS,
        30.0,
        "Seconds to wait for Kafka and ZooKeeper at the start. Higher: tolerates a cluster that is still starting; "
        "lower: a supervisor learns sooner that the process cannot start.",
    ),
    "max_poll_interval_s": Setting(
        Number(0, 30 * 86400, above=True),
        None,
        "Seconds without a request for records after which the member leaves the group. It joins again at the next "
        "request. None: it never leaves.",
    ),
    "offsets": Setting(
        Text(get_args(OffsetStorage)),
        None,
        "Where committed offsets are stored: `kafka`, `zookeeper` (as before 0.8.2) or `both`. None: where the other "
        "members store them.",
    ),
    "zookeeper": Setting(
        Text(check=parse_ensemble, what='"host:port,host:port/chroot"'),
        None,
        "The ensemble, with an optional chroot.",
        addresses=True,
    ),
    "root": Setting(
        Text(check=lambda text: check_path("ZooKeeper root", text), what="an absolute path"),
        "/allocator",
        "The znode that holds the groups. Members with different roots form different groups.",
    ),
    "zookeeper_options": Setting(Table(), None, "Credentials, ACL, SASL and TLS, under kazoo's names.", secret=True),
    "session_timeout_s": Setting(
        Number(0, 3600, above=True),
        10.0,
        "Seconds until the group gives up a silent member. Higher: the partitions of a crashed member wait longer; "
        "lower: a pause of the process, or of ZooKeeper, ends its ownership. The ensemble, or with KIP-848 the broker, "
        "may grant another value. Brokers refuse less than 6 by default.",
    ),
    "heartbeat_interval_s": Setting(
        Number(0, 3600, above=True),
        0.5,
        "Seconds between heartbeats, at most half of the session timeout, so that the loss of one has no effect. "
        "Higher: the member notices a rebalance later; lower: more requests to the coordinator.",
    ),
    "rebalance_timeout_s": Setting(
        SECONDS,
        60.0,
        "Seconds that a rebalance waits for a member that drains and commits. Higher: a member that hangs holds up the "
        "group; lower: a slow member loses its partitions. Brokers before 0.10.1 use the session timeout.",
    ),
    "group_protocol": Setting(
        Text(get_args(GroupProtocol)),
        "classic",
        "`classic`, or `consumer` (KIP-848, brokers from 4.0): the broker assigns partitions and sets the timeouts.",
    ),
    "instance_id": Setting(
        _NAME,
        None,
        "Name of this process that it keeps over restarts; each process needs its own. With `kafka`: a static member "
        "(KIP-345, brokers from 2.3), whose partitions wait for the session timeout; a process that takes over the "
        "name of one that still runs may act beside it for up to the session timeout (classic protocol). With "
        "`zookeeper`: takes effect together with `restart_grace_s`.",
    ),
    "restart_grace_s": Setting(
        Number(0, 86400),
        0.0,
        "Seconds that the partitions of a member with an `instance_id` wait for its next process. Higher: a slower "
        "restart moves nothing; lower: the partitions of a member that does not come back stand still for less time.",
    ),
    "follow_load": Setting(
        Text(get_args(LoadSource)),
        None,
        "Moves partitions away from overloaded members, once all members of the group have this setting; replaces "
        "`assignor`. Load per second: `records` or `bytes` that arrive, seconds in the handler (`handler_s`), or the "
        "number given to `report_load` (`reported`). None: load moves nothing.",
    ),
    "load_tolerance": Setting(
        Number(1, 10, above=True, unit="times the share"),
        1.1,
        "With `follow_load`: multiple of its share that a member may have; the leader's value counts. Higher: fewer "
        "moves; lower: more even.",
    ),
    "settle_s": Setting(
        Number(0, 3600),
        3.0,
        "Seconds before this member starts a partition of a member of kiel, which publishes no claims. Higher: a "
        "longer standstill; lower: records that the former owner commits late are handled twice.",
    ),
    "security": Setting(Table(), None, "TLS and SASL to Kafka, under kafka-python's names.", secret=True),
    "auto_offset_reset": Setting(
        Reset(),
        "earliest",
        "Start without a committed offset, or when the log no longer has the position. `earliest` may repeat records, "
        "`latest` may skip some, a time starts at the first record that is not older, `none` is an error. With "
        "`latest`, records written before the position is found are not read, nor the first ones of a partition that "
        "is added later: await `position` of a partition before you write to it.",
    ),
    "auto_commit_interval_s": Setting(
        SECONDS,
        5.0,
        "Seconds between commits. Higher: more records repeat after a crash; lower: more requests. None: only `commit` "
        "commits.",
        optional=True,
    ),
    "isolation_level": Setting(
        Text(get_args(IsolationLevel)),
        "read_uncommitted",
        "`read_uncommitted` also delivers records of open and aborted transactions.",
    ),
    "max_wait_s": Setting(
        Number(0, 300), 0.5, "Seconds that a broker may wait for `min_bytes`. Higher: fewer requests; lower: more."
    ),
    "min_bytes": Setting(
        Whole(0, unit="bytes"), 1, "Bytes that a broker waits for. Higher: larger fetches, up to `max_wait_s` late."
    ),
    "latency_budget_s": Setting(
        Number(0, 1),
        0.004,
        "Seconds that records may wait at a broker for others, if they arrive steadily and each fetch brings few; half "
        "of it on average. Higher: fewer requests and less CPU; lower: less latency. 0: no wait; `min_bytes` above 1 "
        "implies 0.",
    ),
    "prefetch_bytes": Setting(
        BYTES,
        33_554_432,
        "Bytes that are read ahead, for all partitions together. Higher: more memory; lower: smaller batches, and the "
        "handler may wait. A larger record is still delivered, in a response of its own. From brokers before 0.10.1, a "
        "record may have at most 50 MiB, or this size if it is higher.",
    ),
}

DEFAULT: Final[Mapping[str, Any]] = {name: each.default for name, each in SETTINGS.items()}
"""Name -> default, for signatures and fields."""


# -- fields of sections ------------------------------------------------------------------------------------------------


def setting(kind: SettingKind, default: Any, text: str, *, secret: bool = False, url: bool = False) -> Any:
    """Declares a dataclass field as a setting. The default REQUIRED means that it must be given, None "not used".

    A secret is not in `repr`, and masked in errors and in `--check`. So is what follows the host of a `url`.
    """
    return _field(Setting(kind, default, text, secret=secret, url=url))


def shared(name: str, *, text: str = "", required: bool = True, table: Mapping[str, Setting] = SETTINGS) -> Any:
    """Declares a dataclass field as a setting of `table`. `text` is added to its meaning.

    `required` False: the default is None instead of REQUIRED.
    """
    declared = table[name]
    default = None if declared.default is REQUIRED and not required else declared.default
    return _field(dataclasses.replace(declared, default=default, text=f"{declared.text} {text}".strip()))


def _field(declared: Setting) -> Any:
    return dataclasses.field(
        default=declared.default, metadata={"setting": declared}, repr=not (declared.secret or declared.url)
    )


# -- faults ------------------------------------------------------------------------------------------------------------


class Faults:
    """Collects the errors of all settings."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: list[str] = []
        self.keys: set[str] = set()
        """The wrong settings, which checks of several settings skip."""

    def add(self, key: str, what: str, *, where: str = "") -> None:
        self.keys.add(key)
        self.lines.append(f"{where or self.source}: {what}")

    def raise_if_any(self) -> None:
        if self.lines:
            count = f"{len(self.lines)} faults" if len(self.lines) > 1 else "a fault"
            raise ConfigError("\n  ".join([f"the settings have {count}:", *self.lines]))


_IN_PYTHON: Final = ("topics", "assignor")


def keyword_faults(
    given: Mapping[str, Any], own: Mapping[str, Setting] | None = None, /, **kinds: SettingKind
) -> dict[str, str]:
    """Returns name -> "session_timeout_s = 10000: must be ..." for each wrong keyword argument.

    `own` adds the caller's own settings to the table, and `kinds` the types of arguments that are not settings. An
    empty text stands for None. Ignores unknown names, and topics and assignors, which have more forms in Python.
    """
    table = {**SETTINGS, **{name: Setting(kind, None, "") for name, kind in kinds.items()}, **(own or {})}
    faults = {}
    for name, value in given.items():
        if name not in table or name in _IN_PYTHON:
            continue
        declared = table[name]
        if (value is None or value == "") and declared.accepts_none():
            continue
        try:
            declared.read(value)
        except ValueError as error:
            faults[name] = f"{name} = {declared.quoted(value)}: {error}"
    return faults


def check_keywords(given: Mapping[str, Any], **kinds: SettingKind) -> None:
    """Checks keyword arguments. Raises one ConfigError that lists all `keyword_faults`."""
    faults = keyword_faults(given, **kinds)
    if faults:
        raise ConfigError("; ".join(faults.values()))


def _did_you_mean(value: Any, choices: Sequence[str]) -> str:
    spelt = {each.lower(): each for each in choices}
    import difflib

    near = difflib.get_close_matches(str(value).lower().replace("-", "_"), spelt, 1)
    return f"did you mean {json.dumps(spelt[near[0]])}?" if near else ""
