"""Which topics a mirror copies: those to create on the new cluster, to leave out, and to stop."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from allocator.core.client import KafkaClient
from allocator.errors import BrokerError
from allocator.handlers import is_retry_topic
from allocator.migrate.origins import Origins
from allocator.migrate.report import MirrorReport, Remedy, Stop
from allocator.migrate.takeover import MirrorClusters, leave
from allocator.migrate.topics import SUFFIX, TopicsDiffer, make_alike, settings_of
from allocator.protocols import commands_topic
from allocator.protocols.zookeeper import ZooKeeperClient
from allocator.types import Partitions, TopicPartition

log = logging.getLogger(__name__)

# Time between checks of where the old records come from. Higher: fewer requests; lower: a loop is noticed sooner.
ORIGINS_S: Final = 15.0


class MirroredTopics:
    """The topics of one start of a mirror. `stop` is called with each topic that cannot be copied, and the reason."""

    def __init__(self, report: MirrorReport, clusters: MirrorClusters, stop: Callable[[str, Stop], None]) -> None:
        self._report = report
        self._clusters = clusters
        self._stop = stop
        self._kept: set[str] = set()  # topics that exist alike on both clusters
        self._origins = Origins(clusters.old, None if clusters.back is None else clusters.back.topic)
        self._origins_checked = 0.0

    async def wanted(self) -> list[str]:
        """Returns the old topics to copy, as of now."""
        old, settings = self._clusters.old, self._report.settings
        pattern = re.compile(settings.pattern or "")
        await old.refresh(settings.topics)
        topics = settings.topics or [topic for topic in old.topics() if pattern.match(topic)]
        await self.leave_out(topics)
        return [topic for topic in topics if topic not in self._report.left_out]

    async def prepare(self, topics: Collection[str]) -> None:
        """Leaves out or stops those of these topics that must not be copied; the others exist on both clusters then."""
        await self.leave_out(topics)
        await self._stop_unfit(topics)
        await self.check_origins(topics, 0.0)

    async def keep(self, topics: Iterable[str]) -> None:
        """Creates topics that the new cluster lacks, and adds the partitions by which old topics have grown.

        Raises TopicsDiffer.
        """
        old, new = self._clusters.old, self._clusters.new
        wanted = set(topics)
        await old.refresh(wanted)
        grown = {each for each in wanted if len(old.partitions(each) or ()) > len(new.partitions(each) or ())}
        changed = (wanted - self._kept) | grown
        if changed:
            partitions = [TopicPartition(topic, n) for topic in changed for n in old.partitions(topic) or ()]
            mirrored = {each.topic for each in await self._clusters.offsets.fetch(partitions)}
            settings = self._report.settings
            await make_alike(
                old, new, changed, self._clusters.ensemble, mirrored, settings.replication, settings.skip_settings
            )
            self._kept |= changed
        new.follow({*self._kept, self._clusters.map.topic})
        await new.refresh()

    async def leave_out(self, topics: Iterable[str]) -> None:
        """Leaves out topics that the pattern matches and the mirror must not copy, and logs which."""
        settings, left_out = self._report.settings, self._report.left_out
        if settings.pattern is None:
            return
        new = {topic for topic in topics if topic not in left_out}
        excluded = {topic for topic in new if settings.exclude is not None and re.fullmatch(settings.exclude, topic)}
        found = await own_topics(self._clusters.old, new - excluded, self._clusters.ensemble)
        for topic, what in sorted(found.items()):
            log.warning(
                "%s: leaving out %r: it is %s. To copy it nevertheless, name it (--topic)", settings.group, topic, what
            )
        left_out.update({**dict.fromkeys(excluded, "excluded"), **found})

    async def _stop_unfit(self, topics: Iterable[str]) -> None:
        """Creates the topics that the new cluster lacks. Stops those that it cannot have as they are."""
        for topic in sorted(topics):
            if self.is_mirrored(topic):
                try:
                    await self.keep([topic])
                except (TopicsDiffer, BrokerError) as error:
                    if error.retriable:
                        raise
                    self._stop(topic, Stop(str(error), Remedy.UNFIT))

    async def check_origins(self, topics: Iterable[str], max_age_s: float = ORIGINS_S) -> None:
        """Stops topics whose records come from the new cluster, and tells the next mirrors where they come from."""
        if time.monotonic() - self._origins_checked < max_age_s:
            return
        clusters, target = self._clusters, self._clusters.new.metadata.cluster_id
        await self._origins.refresh()
        self._origins_checked = time.monotonic()
        for topic in topics:
            before = self._origins.of(topic)
            if target in before:
                reason = (
                    f"its records would go round: the old cluster already gets them from the new one, says the offset "
                    f"map {before[target]!r} there"
                )
                self._stop(topic, Stop(reason, Remedy.CYCLE))
            elif before and self.is_mirrored(topic):
                clusters.map.note_before(topic, before)

    async def leave_ended(self, mine: Partitions, drain: Callable[[Partitions], Awaitable[None]]) -> None:
        """Stops topics whose mirror back has begun. `mine` are the partitions of this process."""
        known = self._clusters.map
        await known.refresh()
        switches = {each: switch for each in mine if (switch := known.switch(each)) is not None}
        ended = {each: switch for each, switch in switches.items() if switch.state == "ended"}
        if ended:
            await drain(frozenset(ended))
        for each, switch in ended.items():
            self._stop(each.topic, leave(known, each, switch))

    def has_ended(self, mine: Partitions) -> bool:
        """Returns whether this process has nothing left to copy since the mirror back has begun. `mine` are its
        partitions."""
        stops = self._report.stops
        remedies = {stops[each.topic].remedy for each in mine if each.topic in stops}
        return Remedy.ENDED in remedies and not any(self.is_mirrored(each.topic) for each in mine)

    def is_mirrored(self, topic: str) -> bool:
        return topic not in self._report.stops and topic not in self._report.left_out


async def own_topics(client: KafkaClient, topics: Iterable[str], ensemble: ZooKeeperClient | None) -> dict[str, str]:
    """Returns the topics in which this library keeps something about this one cluster -> what they are.

    A copy would be wrong on another cluster: it names offsets, or records that wait for a group here. The client must
    know all topics.
    """
    found = {}
    for topic in topics:
        stem, _, end = topic.rpartition(".")
        is_single = len(client.partitions(topic) or ()) == 1
        if is_retry_topic(topic, topic.rpartition(".retry-")[0]):
            found[topic] = "a retry topic"
        elif is_single and topic.endswith(SUFFIX):
            found[topic] = "the offset map of a mirror"
        # another program may use these names, so check a setting too
        elif is_single and topic == commands_topic(stem) and await _is_compacted(client, topic, ensemble):
            found[topic] = "the operator commands of a group"
        elif (
            is_single and end == "settled" and client.partitions(stem) and await _is_compacted(client, topic, ensemble)
        ):
            found[topic] = f"the list of settled records of {stem!r}"
    return found


async def _is_compacted(client: KafkaClient, topic: str, ensemble: ZooKeeperClient | None) -> bool:
    return (await settings_of(client, [topic], ensemble))[topic].get("cleanup.policy") == "compact"
