"""A topic that a pipeline reads: it gets the topic's ends once, and reads exactly up to them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Optional

from kafka import errors  # noqa: F401 - imports `kafka` first, see `protocol.load`
from kafka.protocol.admin import DescribeConfigsRequest

from allocator.core.client import KafkaClient, describe_configs
from allocator.errors import BrokerError
from allocator.spark.link import ClusterLink
from allocator.spark.options import READ, Options, own_name, read_options
from allocator.spark.ranges import COMMITTED, EARLIEST, LATEST, NEW_PARTITION_START, Range, StartOrEnd
from allocator.spark.source.plan import END_NAME, bounds, clip, ends, find_partitions, resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Extent", "Range", "Topic"]

log = logging.getLogger(__name__)

# options that the ranges of `frame` replace
RANGED = ("group", "starting_offsets", "ending_offsets", "starting_timestamps", "ending_timestamps")
# options that only `frame` may set
CHOSEN = ("brokers", "topics", "include_headers")


@dataclass(frozen=True)
class Extent:
    """The ends of a topic at one moment."""

    cluster: Optional[str]
    """The cluster's id; None before Kafka 0.10.1."""
    topic_id: Optional[str]
    """The id of the topic, which changes if it is recreated. None before Kafka 2.8."""
    log: Mapping[int, tuple[int, int]]
    """Partition -> (first offset, end offset)."""
    chosen: Mapping[int, tuple[int, int]]
    """Partition -> (first offset, end offset) to read. The first offset may be before the log if an earlier run ended
    there."""
    compacted: bool = False
    """Whether the brokers may remove records that later ones with the same key replace; False before 0.11."""


@dataclass(frozen=True)
class Topic:
    """A topic to read.

    `options` are those of `format("allocator")`: `starting_offsets`, `ending_offsets` (both may be "committed" with a
    `group`), `isolation_level`, `security.*`, and so on. The constructor does no I/O; it raises ConfigError for wrong
    options.
    """

    brokers: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._read()

    def __str__(self) -> str:
        return f"kafka://{self.brokers}/{self.name}"

    @property
    def fail_on_data_loss(self) -> bool:
        return self._read()[0].fail_on_data_loss

    @property
    def isolation_level(self) -> str:
        return self._read()[0].isolation_level

    def extent(
        self, reached: Mapping[int, int] = MappingProxyType({}), since: Mapping[int, int] | None = None
    ) -> Extent:
        """Reads the extent. `reached`: partition -> offset up to which it was read, as in `list_offsets`.

        `since`: partition -> offset at which earlier runs ended, and `chosen` starts. Any other partition is new: it
        starts where JSON in the options says for this partition, else at its first record. None: there was no earlier
        run, so the start in the options counts for every partition.

        Raises BrokersUnavailable, TopicNotFound, DataLoss, and the errors of `plan.resolve`.
        """
        options, to_committed = self._read()

        async def read() -> Extent:
            client = await link.client()
            partitions = await find_partitions(client, options)
            read_to = {tp: reached[tp.partition] for tp in partitions if tp.partition in reached}
            known = await bounds(client, options, partitions, read_to)
            short = [tp for tp, at in read_to.items() if known[tp][1] < at]
            if short and options.isolation_level == "read_committed":
                # records that were read with read_uncommitted are beyond the start of an open transaction
                whole = await ends(client, replace(options, isolation_level="read_uncommitted"), short, read_to)
                known.update({tp: (known[tp][0], read_to[tp]) for tp in short if whole[tp] >= read_to[tp]})
            first = options.start or StartOrEnd(EARLIEST)
            last = options.end or StartOrEnd(COMMITTED if to_committed else LATEST)
            start = {} if since is None else {tp: since.get(tp.partition, NEW_PARTITION_START) for tp in known}
            named = {
                tp: reach
                for tp, reach in known.items()
                if since is None or (tp in first.each and tp.partition not in since)
            }
            found = await resolve(client, options, first, named, "starting_offsets")
            known.update(named)
            start.update(clip(options, found, named, "starting_offsets"))
            end = await resolve(client, options, last, known, END_NAME)
            if since is not None:
                # an end that earlier runs have reached is no loss once retention has deleted it
                end = {tp: max(at, min(start[tp], known[tp][0])) for tp, at in end.items()}
            end = clip(options, end, known, END_NAME)
            topic_id = client.topic_id(self.name)
            return Extent(
                client.metadata.cluster_id,
                None if topic_id is None else str(topic_id),
                {tp.partition: reach for tp, reach in known.items()},
                {tp.partition: (start[tp], max(start[tp], end[tp])) for tp in known},
                await self._is_compacted(client),
            )

        with ClusterLink(options) as link:
            return link.run(read())

    async def _is_compacted(self, client: KafkaClient) -> bool:
        if client.api_version(DescribeConfigsRequest) is None:
            return False
        try:
            found = await describe_configs(client, "topic", [self.name], ["cleanup.policy"])
        except BrokerError as error:  # this user may not read the settings
            log.info("%s: cannot tell whether it is compacted: %s", self, error)
            return False
        return "compact" in found[self.name].get("cleanup.policy", "")

    def topic_id(self) -> str | None:
        """Returns the current `Extent.topic_id`."""

        async def read() -> str | None:
            client = await link.client()
            await client.refresh([self.name])
            found = client.topic_id(self.name)
            return None if found is None else str(found)

        with ClusterLink(self._read()[0]) as link:
            found: str | None = link.run(read())
            return found

    def frame(self, spark: SparkSession, ranges: Iterable[Range], *, millis: bool = False) -> DataFrame:
        """Returns the records of `ranges`, with headers. `ranges` has one range for each partition.

        `millis`: the column `timestamp` has milliseconds since the epoch, which Spark's type cannot always hold.
        """
        from allocator.spark.rows import schema_text
        from allocator.spark.source.source import NAME, register, registered

        if not registered(spark):
            register(spark)
        wanted = {found.partition: found for found in ranges}
        schema = schema_text(True, millis)
        if not wanted:
            return spark.createDataFrame([], schema)
        given = {name: value for name, value in self.options.items() if own_name(name) not in (*RANGED, *CHOSEN)}
        given.update(
            brokers=self.brokers,
            include_headers="true",
            assign=json.dumps({self.name: sorted(wanted)}),
            starting_offsets=self._json({number: found.start for number, found in wanted.items()}),
            ending_offsets=self._json({number: found.end for number, found in wanted.items()}),
        )
        return spark.read.format(NAME).options(**given).schema(schema).load()

    def ranges(self, reach: Mapping[int, tuple[int, int]]) -> list[Range]:
        """Returns `reach` (partition -> first offset, end offset) as ranges, without empty ones."""
        return [Range(self.name, number, low, high) for number, (low, high) in sorted(reach.items()) if high > low]

    def _json(self, offsets: Mapping[int, int]) -> str:
        return json.dumps({self.name: {str(number): offset for number, offset in sorted(offsets.items())}})

    def _read(self) -> tuple[Options, bool]:
        given = {"brokers": self.brokers, "topics": self.name, **self.options}
        # only pipelines may end at a group's offsets, which a batch does not support
        ends = [name for name, text in given.items() if own_name(name) == "ending_offsets" and text == COMMITTED]
        to_committed = bool(ends) and "group" in map(own_name, given)
        if to_committed:
            given = {name: text for name, text in given.items() if name not in ends}
        return read_options(given, READ), to_committed
