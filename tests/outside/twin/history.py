"""Histories: what happens to a topic and to the members of a group, as pure data.

The `repr` of a history can be pasted into a test. Every step names only partitions and members, so that each client can
follow it, whichever member of its group owns a partition.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional, Union


@dataclass(frozen=True)
class Produce:
    """Appends `count` records in one batch. `how`: plain, committed, aborted, or open (a transaction until `End`)."""

    partition: int
    count: int
    how: str = "plain"


@dataclass(frozen=True)
class End:
    """Ends the open transaction of a partition."""

    partition: int
    commit: bool


@dataclass(frozen=True)
class DeleteRecords:
    """Deletes the records before this offset, or all of them."""

    partition: int
    before: Optional[int] = None


@dataclass(frozen=True)
class DeleteTopic:
    """Deletes the topic, and waits for a while until the members have noticed."""


@dataclass(frozen=True)
class CreateTopic:
    """Creates the topic again."""

    partitions: int


@dataclass(frozen=True)
class Extend:
    """Adds partitions until the topic has this number of them."""

    partitions: int


@dataclass(frozen=True)
class Start:
    """Starts a member, and waits until the group has shared the partitions again."""

    member: str


@dataclass(frozen=True)
class Stop:
    """Closes a member. It commits first if the history commits automatically."""

    member: str


@dataclass(frozen=True)
class Kill:
    member: str


@dataclass(frozen=True)
class Freeze:
    """Stops the process of a member until `Thaw`."""

    member: str


@dataclass(frozen=True)
class Thaw:
    member: str


@dataclass(frozen=True)
class Read:
    """All members read to the ends of their partitions, except of those that are paused."""


@dataclass(frozen=True)
class Take:
    """The owner reads this number of records from one partition, or what is left of it."""

    partition: int
    count: int


@dataclass(frozen=True)
class Seek:
    """The owner seeks to this offset. A negative one counts from behind the end: -1 is one beyond it."""

    partition: int
    offset: int


@dataclass(frozen=True)
class Pause:
    partition: int


@dataclass(frozen=True)
class Resume:
    partition: int


@dataclass(frozen=True)
class Commit:
    """The owner commits this offset of one partition. Without a partition, every member commits its positions."""

    partition: Optional[int] = None
    offset: int = 0


@dataclass(frozen=True)
class Wait:
    """Lets time pass, in which the members poll without reading."""

    seconds: float


@dataclass(frozen=True)
class Mark:
    """Compares the clients: the records that they delivered since the last mark, and the committed offsets."""


Step = Union[
    Produce, End, DeleteRecords, DeleteTopic, CreateTopic, Extend, Start, Stop, Kill, Freeze, Thaw, Read, Take, Seek,
    Pause, Resume, Commit, Wait, Mark,
]  # fmt: skip


@dataclass(frozen=True)
class History:
    """`auto`: the members commit automatically. `reset`: earliest or latest. `committed`: read_committed."""

    steps: tuple[Step, ...]
    partitions: int = 1
    auto: bool = True
    reset: str = "earliest"
    committed: bool = False

    def has(self, *kinds: type) -> bool:
        return any(isinstance(step, kinds) for step in self.steps)

    @property
    def repeats(self) -> bool:
        """Whether each client must repeat the same records, so that the repeated ones are compared too.

        A rebalance, or the death of a member that commits automatically, may repeat records.
        """
        together = max(len(scene.live | scene.frozen) for scene in scenes(self))
        return together < 2 and not self.has(Freeze, Extend, DeleteTopic) and not (self.auto and self.has(Kill))


class Scene:
    """What exists at one moment of a history."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.exists = True
        self.live: frozenset[str] = frozenset()
        self.frozen: frozenset[str] = frozenset()
        self.open: frozenset[int] = frozenset()
        self.paused: frozenset[int] = frozenset()
        self.sought: frozenset[int] = frozenset()  # and not read since

    def allows(self, step: Step) -> bool:
        """Returns whether the step makes sense now."""
        partition = getattr(step, "partition", None)
        if partition is not None and (not self.exists or partition >= self.partitions):
            return False
        if isinstance(step, (Pause, Resume)):
            return (partition in self.paused) == isinstance(step, Resume)
        if isinstance(step, (Take, Seek, Commit)):
            return bool(self.live) and self.exists and not (isinstance(step, Take) and partition in self.paused)
        if isinstance(step, Produce):
            return partition not in self.open | (self.sought & self.paused)  # one transaction at a time
        if isinstance(step, DeleteRecords):
            return partition not in self.open | self.paused
        if isinstance(step, End):
            return partition in self.open
        if isinstance(step, Start):
            return self.exists and step.member not in self.live | self.frozen
        if isinstance(step, (Stop, Kill, Freeze)):
            return step.member in self.live
        if isinstance(step, Thaw):
            return step.member in self.frozen
        if isinstance(step, DeleteTopic):
            return self.exists and not self.open and not self.paused
        if isinstance(step, CreateTopic):
            return not self.exists
        if isinstance(step, Extend):
            return self.exists and step.partitions > self.partitions
        return not isinstance(step, Read) or (self.exists and bool(self.live))

    def moves(self, step: Step) -> bool:
        """Returns whether the step takes partitions from members, and uncommitted positions with them.

        How many of the positions survive depends on the protocol of the group, and on when members commit.
        """
        others = self.live - {getattr(step, "member", "")}
        lost = isinstance(step, (Kill, Freeze, Extend, DeleteTopic)) and self.exists
        return bool(self.live) and (lost or (isinstance(step, (Start, Stop, Thaw)) and bool(others)))

    def after(self, step: Step) -> Scene:
        new = Scene(0)
        new.__dict__.update(self.__dict__)
        if isinstance(step, Produce) and step.how == "open":
            new.open |= {step.partition}
        elif isinstance(step, End):
            new.open -= {step.partition}
        elif isinstance(step, Start):
            new.live |= {step.member}
        elif isinstance(step, (Stop, Kill)):
            new.live -= {step.member}
        elif isinstance(step, Freeze):
            new.live, new.frozen = self.live - {step.member}, self.frozen | {step.member}
        elif isinstance(step, Thaw):
            new.live, new.frozen = self.live | {step.member}, self.frozen - {step.member}
        elif isinstance(step, (Pause, Resume)):
            new.paused = self.paused ^ {step.partition}
        elif isinstance(step, DeleteTopic):
            new.exists = False
        elif isinstance(step, (CreateTopic, Extend)):
            new.exists, new.partitions = True, step.partitions
        if isinstance(step, Seek):
            new.sought = self.sought | {step.partition}
        elif isinstance(step, Take):
            new.sought = self.sought - {step.partition}
        elif isinstance(step, Read):
            new.sought = self.sought & self.paused
        return new


def scenes(history: History) -> Iterator[Scene]:
    """Yields the scene before each step, and the last one."""
    scene = Scene(history.partitions)
    yield scene
    for step in history.steps:
        scene = scene.after(step)
        yield scene


def repaired(history: History) -> History:
    """Leaves out the steps that make no sense, and adds an end at which every client has to agree."""
    scene, steps = Scene(history.partitions), []

    def add(step: Step) -> None:
        nonlocal scene
        if scene.allows(step):
            first: list[Step] = []
            if scene.live and isinstance(step, (DeleteRecords, DeleteTopic)):
                first.append(Read())  # what is in a buffer may be delivered or not
            if scene.live and isinstance(step, Produce) and step.partition in scene.sought:
                first.append(Read())  # a position beyond the end is reset at once, or in the next poll
            if scene.moves(step):
                first.append(Commit())
            if steps[len(steps) - len(first) :] != first:
                steps.extend(first)
            steps.append(step)
            scene = scene.after(step)

    for step in history.steps:
        add(step)
    if steps[-2:] == [Stop("z"), Mark()]:
        return replace(history, steps=tuple(steps))
    add(CreateTopic(1))
    for partition in range(scene.partitions):
        add(End(partition, commit=True))
        add(Resume(partition))
    for member in sorted(scene.frozen):
        add(Thaw(member))
    for member in sorted(scene.live):
        add(Stop(member))
    for step in (Start("z"), Read(), Mark(), Stop("z"), Mark()):
        add(step)
    return replace(history, steps=tuple(steps))


def draw(seed: int) -> History:
    """Returns the random history of a seed."""
    chance = random.Random(seed)
    partitions = chance.choice([1, 1, 2, 3])
    members = ("a", "b")[: chance.choice([1, 1, 2])]
    transactions = chance.random() < 0.4
    history = History(
        (), partitions, chance.random() < 0.6, chance.choice(["earliest", "earliest", "latest"]), transactions
    )
    scene, steps = Scene(partitions), []

    def some() -> int:
        return chance.randrange(max(1, scene.partitions))

    makers = [
        (8, lambda: Produce(some(), chance.randint(1, 12), chance.choice(HOW) if transactions else "plain")),
        (4 if transactions else 0, lambda: End(some(), chance.random() < 0.5)),
        (2, lambda: DeleteRecords(some(), chance.choice([None, chance.randint(1, 15)]))),
        (0.4, DeleteTopic),
        (2, lambda: CreateTopic(chance.randint(1, 3))),
        (0.4, lambda: Extend(scene.partitions + 1)),
        (6, lambda: Start(chance.choice(members))),
        (3, lambda: Stop(chance.choice(members))),
        (0.7, lambda: Kill(chance.choice(members))),
        (0.4, lambda: Freeze(chance.choice(members))),
        (2, lambda: Thaw(chance.choice(members))),
        (5, Read),
        (5, lambda: Take(some(), chance.randint(1, 6))),
        (3, lambda: Seek(some(), chance.randint(-5, 20))),
        (1, lambda: Pause(some())),
        (2, lambda: Resume(some())),
        (3, lambda: Commit(*chance.choice([(), (), (some(), chance.randint(0, 15))]))),
        (1, lambda: Wait(0.5)),
        (2, Mark),
    ]
    weights = [weight for weight, _ in makers]
    while len(steps) < 14:
        step = chance.choices(makers, weights)[0][1]()
        if scene.allows(step):
            steps.append(step)
            scene = scene.after(step)
    return repaired(replace(history, steps=tuple(steps)))


HOW = ("plain", "committed", "committed", "aborted", "aborted", "open")


def smaller(history: History) -> Iterator[History]:
    """Yields the history without some of its steps: long parts first, then single steps."""
    steps = history.steps
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            found = repaired(replace(history, steps=(*steps[:start], *steps[start + size :])))
            if len(found.steps) < len(steps):
                yield found
        size //= 2


def shown(history: History) -> str:
    """Returns the history as Python code, a step a line."""
    settings = ", ".join(f"{name}={getattr(history, name)!r}" for name in ("partitions", "auto", "reset", "committed"))
    return "History((\n" + "".join(f"    {step!r},\n" for step in history.steps) + f"), {settings})"


def numbered(spec: str) -> Sequence[int]:
    """Returns the seeds of `0:100`, or of `17`."""
    first, colon, end = spec.partition(":")
    return range(int(first), int(end) if colon else int(first) + 1)
