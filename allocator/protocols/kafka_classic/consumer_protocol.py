"""Encodes and decodes the messages that consumers of a classic group exchange through the coordinator. No I/O.

The broker passes these bytes on without reading them: each member's `Subscription` in JoinGroup, each member's
`MemberAssignment` in SyncGroup, and the user data of the sticky assignor in a subscription. The formats are those of
`ConsumerProtocolSubscription`, `ConsumerProtocolAssignment` and `StickyAssignorUserData` in Kafka's source code.
KIP-429 added the owned partitions (v1), KIP-792 their generation (v2), KIP-881 the rack (v3). Java before 3.4 reads v1
at most. Java 2.8 to 3.3 takes the generation of a cooperative member's owned partitions from the user data.

Decoding follows the protocol's rules for other versions: it reads a newer version as the newest known version and
ignores the rest. Fields that an older client omitted at the end have their defaults. All other deviations raise
`Malformed`, and so do more than `MOST_PARTITIONS` partitions. A length field never makes the decoder allocate more
memory than the message has bytes.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from itertools import repeat
from typing import NoReturn

from kafka import errors  # noqa: F401 - imports `kafka` first, see `protocol.load`
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from allocator.errors import AllocatorError
from allocator.types import NO_PARTITIONS, Partitions, TopicPartition

PROTOCOL_TYPE = "consumer"
NEWEST = 3
MOST_PARTITIONS = 500_000  # of one member. Building more than that would stop the event loop for seconds


class Malformed(AllocatorError):
    """Another member sent bytes that are not a message of this protocol."""


@dataclass(frozen=True)
class Subscription:
    """The subscribed topics of a member that joins, and the partitions that it owns."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    """Data for one assignor. Java encodes absent data as None, kafka-python and aiokafka as b"". A sticky leader of
    sarama fails on b""."""
    owned: Partitions = NO_PARTITIONS
    """The partitions that the member owns when it joins; none under eager assignors. From v1 on."""
    generation: int = -1
    """The generation that assigned `owned`; -1 if unknown. From v2 on."""
    rack: str | None = None
    """The rack of the member. From v3 on."""
    version: int = NEWEST

    def encode(self) -> bytes:
        """Returns the encoded message, without the fields that `version` lacks."""
        message = ConsumerProtocolSubscription
        encoded: bytes = message(
            topics=list(self.topics),
            user_data=self.user_data,
            owned_partitions=[message.TopicPartition(topic=t, partitions=n) for t, n in _by_topic(self.owned)],
            generation_id=self.generation,
            rack_id=self.rack,
            version=self.version,
        ).encode()
        return encoded

    @classmethod
    def decode(cls, data: bytes) -> Subscription:
        """Decodes a subscription. Raises `Malformed`."""
        of = _Reader(data, "a subscription")
        version = of.version()
        topics = tuple(of.name() for _ in range(of.count(2)))
        user_data = None if of.at_end else of.blob()
        owned = of.partitions() if version >= 1 and not of.at_end else NO_PARTITIONS
        generation = of.int32() if version >= 2 and not of.at_end else -1
        rack = of.text() if version >= 3 and not of.at_end else None
        return cls(topics, user_data, owned, generation, rack, min(version, NEWEST))


@dataclass(frozen=True)
class MemberAssignment:
    """The leader's message to a member."""

    partitions: Partitions
    user_data: bytes | None = None
    """A sarama member returns the user data in its next JoinGroup, where b"" would crash a sticky leader of sarama."""
    version: int = 0

    def encode(self) -> bytes:
        """Returns the encoded message. All versions have the same fields."""
        message = ConsumerProtocolAssignment(self.version, _by_topic(self.partitions), self.user_data)
        return bytes(message.encode())

    @classmethod
    def decode(cls, data: bytes) -> MemberAssignment:
        """Decodes an assignment. Empty bytes mean no partitions: a leader may omit a member. Raises `Malformed`."""
        if not data:
            return cls(NO_PARTITIONS)
        of = _Reader(data, "an assignment")
        version = of.version()
        partitions = of.partitions()
        return cls(partitions, None if of.at_end else of.blob(), min(version, NEWEST))


@dataclass(frozen=True)
class StickyUserData:
    """The last assignment of a member of an eager sticky group, which it released to join (KIP-54, KIP-341)."""

    partitions: Partitions
    generation: int = -1

    def encode(self) -> bytes:
        """Returns the user data in v1, the version of all other clients."""
        # an assignment is a version, the partitions and user data
        partitions = ConsumerProtocolAssignment(0, _by_topic(self.partitions), None).encode()[2:-4]
        return bytes(partitions) + generation_data(self.generation)

    @classmethod
    def decode(cls, data: bytes) -> StickyUserData:
        """Decodes v1, or v0, which lacks the generation. Raises `Malformed`.

        The bytes carry no version number, except those of kafka-python 3, which ignores user data without it.
        """
        try:
            return cls._decode(data)
        except Malformed:
            if data[:2] not in (b"\x00\x00", b"\x00\x01"):
                raise
            return cls._decode(data[2:])

    @classmethod
    def _decode(cls, data: bytes) -> StickyUserData:
        of = _Reader(data, "the sticky assignor's user data")
        partitions = of.partitions()
        generation = -1 if of.at_end else of.int32()
        if not of.at_end:
            of.fail("more follows")
        return cls(partitions, generation)


def generation_data(generation: int) -> bytes:
    """Returns the user data of `cooperative-sticky`: the generation, as Java encodes it from 2.8 on; -1 if unknown."""
    return struct.pack(">i", generation)


def generation_from(data: bytes | None) -> int:
    """Returns the generation in user data of `cooperative-sticky`; -1 if there is none (franz-go sends other data)."""
    return int(struct.unpack(">i", data)[0]) if data is not None and len(data) == 4 else -1


def _by_topic(partitions: Partitions) -> list[tuple[str, list[int]]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        by_topic[topic].append(number)
    return list(by_topic.items())


class _Reader:
    def __init__(self, data: bytes, what: str) -> None:
        self._data = bytes(data)
        self._what = what
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def fail(self, why: str) -> NoReturn:
        raise Malformed(f"another member sent {self._what} that cannot be read: {why} at byte {self._at}")

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self._data) - self._at:
            self.fail(f"{size} bytes announced, {len(self._data) - self._at} left")
        self._at += size
        return self._data[self._at - size : self._at]

    def int16(self) -> int:
        return int(struct.unpack(">h", self.take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            self.fail(f"version {version}")
        return version

    def count(self, size: int) -> int:
        """Reads the count of an array. Fails if so many items of at least `size` bytes cannot fit into the rest."""
        count = self.int32()
        if count == -1:
            return 0  # a null array has no items
        if count < 0 or count * size > len(self._data) - self._at:
            self.fail(f"{count} items announced, {len(self._data) - self._at} bytes left")
        return count

    def text(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            self.fail("a text that is not UTF-8")

    def name(self) -> str:
        text = self.text()
        if text is None:
            self.fail("a topic without a name")
        return text

    def blob(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self.take(size)

    def partitions(self) -> Partitions:
        found: set[TopicPartition] = set()
        for _ in range(self.count(6)):
            topic = self.name()
            count = self.count(4)
            if len(found) + count > MOST_PARTITIONS:
                self.fail(f"more than {MOST_PARTITIONS} partitions")
            found.update(map(TopicPartition, repeat(topic), struct.unpack(f">{count}i", self.take(4 * count))))
        return frozenset(found)
