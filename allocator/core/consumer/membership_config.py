"""The settings with which a consumer joins: a class for each membership, and the settings that all of them share.

Each class checks its settings and creates the membership. Users pass an object of the class, or its name.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional, Protocol

from allocator.core.client.client import KafkaClient
from allocator.core.client.coordinator import Coordinator
from allocator.core.consumer.commanded import CommandedConsumer, CommandExecutor, NoCommands
from allocator.core.errors import AllocatorError, ConfigError
from allocator.core.membership.membership import AssignmentListener, Membership
from allocator.core.memberships import known_memberships, options_of
from allocator.core.offsets.storage import StoredOffsets
from allocator.core.settings.names import check_topic, default_client_id
from allocator.core.settings.patterns import check_pattern
from allocator.core.settings.spellings import HOLDERS
from allocator.core.settings.table import DEFAULT, SETTINGS, check_keywords, keyword_faults
from allocator.core.text.quoting import shown
from allocator.core.types import Assignors, LoadSource, MembershipName, OffsetStorage, TopicPartition

if TYPE_CHECKING:
    from allocator.assignors import Assignor, Load, LoadReport


class Fault(NamedTuple):
    """Settings that are valid one by one but contradict each other."""

    settings: tuple[str, ...]
    why: str
    error: AllocatorError | None = None
    """The error of a check. `MembershipConfig.check` raises it unchanged if it is not a ConfigError."""

    @classmethod
    def of(cls, settings: tuple[str, ...], check: Callable[[], Any]) -> Iterator[Fault]:
        """Yields the fault of these settings if `check` raises AllocatorError."""
        try:
            check()
        except AllocatorError as error:
            yield cls(settings, str(error), error)

    def text(self, values: Mapping[str, Any]) -> str:
        """Returns the message, like "offsets = 'kafka' with membership = 'kiel': ..."."""
        return f"{' with '.join(self._shown(name, values.get(name)) for name in self.settings)}: {self.why}"

    @staticmethod
    def _shown(name: str, value: Any) -> str:
        quoted = SETTINGS[name].quoted(value) if name in SETTINGS else shown(value)
        return f"{name} not set" if value in (None, "", ()) else f"{name} = {quoted}"


class CommandSource(Protocol):
    """Operator commands that are kept outside the membership, for example in a topic."""

    topic: str | None

    def watch(self, client: KafkaClient) -> None:
        """Makes `client` include the topic in its metadata requests."""

    async def follow(self, client: KafkaClient, on_commands: Callable[[Any, Any], None], began: asyncio.Event) -> None:
        """Calls `on_commands` with the current commands and after each change. Sets `began` after the first call."""


class MemberParts(NamedTuple):
    """The parts of a consumer that its membership works with."""

    client: KafkaClient
    listener: AssignmentListener
    coordinator: Coordinator
    load: Load
    """Returns the load of partitions, for assignors that use it."""
    offsets: StoredOffsets | None
    """The committed offsets of the group. Their storage changes when the group is adopted from another layout."""
    measure: Callable[[LoadSource], Callable[[], LoadReport]] | None = None
    """Starts to measure the load of the owned partitions. Returns a function that returns the load."""
    on_commands: Callable[[Any, Any], None] | None = None
    """Called with the operator commands, if the membership has any."""


@dataclass(frozen=True)
class MembershipOptions:
    """The settings of one membership. The constructor raises a ConfigError that lists every invalid value."""

    name: ClassVar[MembershipName]
    storages: ClassVar[tuple[OffsetStorage, ...]] = ("kafka",)
    """The allowed storages of the group's offsets. The first is the default, which the group's other clients use."""

    def __post_init__(self) -> None:
        faults = keyword_faults(vars(self))
        if faults:
            raise ConfigError(f"{type(self).__name__}: {'; '.join(faults.values())}")

    def with_ensemble(self, zookeeper: str) -> MembershipOptions:
        """Returns these settings with the ensemble, if they have one. Raises ConfigError if they name one already."""
        return self

    @property
    def confirms_within_s(self) -> float | None:
        """How long a member may wait for its service to confirm it after a lost connection; None: it is not told."""
        return None

    def executor(self, consumer: CommandedConsumer) -> CommandExecutor:
        """Returns what carries out the operator commands that this membership, or `command_source`, delivers."""
        return NoCommands()

    @property
    def lasting_name(self) -> str | None:
        """The member name that survives a restart of the process, such as `instance_id`; None without one."""
        return None

    def faults(self, config: MembershipConfig) -> Iterator[Fault]:
        """Finds contradictions between settings, without any I/O."""
        yield from Fault.of(("assignor", "membership"), lambda: self.check_assignor(config))

    def check_assignor(self, config: MembershipConfig) -> None:
        """Raises AllocatorError for assignors that do not work with this membership."""
        config.assignors()

    def make(self, config: MembershipConfig, parts: MemberParts) -> Membership:
        """Creates the membership, without any I/O."""
        raise NotImplementedError

    def command_source(self, config: MembershipConfig, brokers: Any, security: Any) -> CommandSource | None:
        """Returns the topic that holds the operator commands; None if the membership delivers them itself."""
        return None


@dataclass(frozen=True)
class MembershipConfig:
    """The settings that all memberships share, and the options of the chosen one. Times are in seconds.

    `of` creates it from the keywords of `Consumer`. `check` raises one ConfigError that lists every fault.
    """

    group: Optional[str]
    client_id: str
    options: MembershipOptions
    topics: Sequence[str] = ()
    pattern: Optional[str] = DEFAULT["pattern"]
    partitions: Sequence[TopicPartition] = ()
    assignor: Optional[Assignors] = DEFAULT["assignor"]
    weight: float = DEFAULT["weight"]
    rack: Optional[str] = DEFAULT["rack"]
    connect_timeout_s: float = DEFAULT["connect_timeout_s"]
    max_poll_interval_s: Optional[float] = DEFAULT["max_poll_interval_s"]
    offsets: Optional[OffsetStorage] = DEFAULT["offsets"]

    @classmethod
    def of(
        cls, membership: MembershipName | MembershipOptions, *, zookeeper: str | None = None, **common: Any
    ) -> MembershipConfig:
        """Raises ConfigError for keywords of the wrong type or out of range, and for an unknown membership."""
        check_keywords(common)  # first, because the other checks fail on a wrong type
        options = membership_of(membership, zookeeper)
        common["client_id"] = common.get("client_id") or default_client_id(instance_id=options.lasting_name)
        return cls(options=options, partitions=getattr(options, "partitions", ()), **common)

    @property
    def membership(self) -> MembershipName:
        return self.options.name

    @property
    def chosen(self) -> bool:
        """Whether the user subscribed to topics or assigned partitions."""
        return bool(self.topics or self.pattern or self.partitions)

    @property
    def storage(self) -> OffsetStorage:
        """Where the group's offsets are stored: the setting `offsets`, or the default of the membership."""
        return self.offsets or self.options.storages[0]

    def of_member(self) -> dict[str, Any]:
        """Returns the arguments that the settings of every group member take."""
        return {
            "name": self.client_id,
            "topics": frozenset(self.topics),
            "pattern": self.pattern,
            "connect_timeout_s": self.connect_timeout_s,
            "max_poll_interval_s": self.max_poll_interval_s,
        }

    def check(self) -> None:
        """Raises an error that lists all faults, without any I/O."""
        faults = [*self.faults()]
        for fault in faults:
            if fault.error is not None and not isinstance(fault.error, ConfigError):
                raise fault.error
        if faults:
            values = {**vars(self.options), **vars(self), "membership": self.membership}
            raise ConfigError("; ".join(fault.text(values) for fault in faults))

    def faults(self) -> Iterator[Fault]:
        """Finds contradictions between settings, for Python, the daemon's file and Spark's options."""
        chosen = tuple(name for name in ("topics", "pattern", "partitions") if getattr(self, name))
        if len(chosen) > 1:
            yield Fault(chosen, "they exclude each other; set one of them")
        if self.group is None and self.membership != "fixed":
            yield Fault(("group", "membership"), 'only membership="fixed" can do without')
        if self.offsets is not None and self.offsets not in self.options.storages:
            yield Fault(
                ("offsets", "membership"), f"this membership stores them in one of: {', '.join(self.options.storages)}"
            )
        yield from Fault.of(("pattern", "membership"), lambda: check_pattern(self.pattern or None, self.membership))
        for topic in (*self.topics, *(topic for topic, _ in self.partitions)):
            yield from Fault.of(("topics",), lambda topic=topic: check_topic(topic))  # type: ignore[misc]
        yield from self.options.faults(self)

    def assignors(self) -> dict[str, Assignor]:
        """Returns the assignors by name, the preferred one first."""
        return assignors_of("naive" if self.assignor is None else self.assignor)


def membership_of(given: MembershipName | MembershipOptions, zookeeper: str | None = None) -> MembershipOptions:
    """Returns the membership for a name or an object. Raises ConfigError for anything else.

    `zookeeper` is the ensemble of a membership on ZooKeeper. Other memberships ignore it, so that a service can change
    its membership alone.
    """
    named = not isinstance(given, MembershipOptions)
    check_keywords({"zookeeper": zookeeper, **({"membership": given} if named else {})})
    options: MembershipOptions = options_of(given)() if isinstance(given, str) else given
    return options.with_ensemble(zookeeper) if zookeeper else options


def membership_from(name: MembershipName, settings: Mapping[str, Any]) -> MembershipOptions:
    """Creates the membership `name`. Ignores `settings` that this membership does not have."""
    kind: type[MembershipOptions] = options_of(name)
    own = {each.name for each in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in own})


def _holders(name: str) -> str:
    """Returns a hint that names the memberships with the argument `name`; "" if none has it."""
    kinds = [kind.__name__ for kind in map(options_of, known_memberships()) if name in kind.__dataclass_fields__]
    if not kinds:
        return ""
    too = f"; {', '.join(kinds[1:])} have it too" if kinds[1:] else ""
    return f"give it to the membership: membership={kinds[0]}({name}=...){too}"


HOLDERS["membership"] = _holders


def assignors_of(given: Any) -> dict[str, Assignor]:
    """Returns the assignors of the setting `assignor` by name, the preferred one first. Raises AllocatorError."""
    if not isinstance(given, (str, list, tuple)) and not callable(given):
        raise ConfigError("it must be a name, a function, or a list of them")
    offered = [given] if isinstance(given, str) or callable(given) else list(given)
    if not offered:
        raise ConfigError("the list is empty; name at least one, e.g. 'naive'")
    from allocator.assignors import resolve  # costs time where nothing is assigned

    return {found.name: found for found in map(resolve, offered)}
