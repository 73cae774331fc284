"""Base class of the memberships under Kafka's two group protocols."""

from __future__ import annotations

import asyncio
import logging

from allocator.core.aio import TaskGroup, start_task
from allocator.core.client import Committer, ErrorCode, Identity, KafkaClient
from allocator.core.membership import AssignmentListener, GroupMembership
from allocator.core.settings import TopicSelection
from allocator.errors import BrokersUnavailable, InstanceIdInUse
from allocator.protocols.kafka_group import KafkaGroup
from allocator.protocols.kafka_lease import KafkaLease
from allocator.types import TopicPartition

log = logging.getLogger(__name__)


class KafkaMember(GroupMembership):
    """A `Membership` that is also the `Committer` of its offsets. A subclass handles subscriptions and assignments."""

    group: KafkaGroup
    """The state machine of the protocol."""

    def __init__(
        self,
        client: KafkaClient,
        group: str,
        listener: AssignmentListener,
        selection: TopicSelection,
        connect_timeout_s: float | None,
    ) -> None:
        super().__init__(listener)
        self._client = client
        self._group_name = group
        self._connect_timeout_s = connect_timeout_s
        self._selection = selection
        self._wanted = selection.topics
        """The topics of the subscription that was last reported to the coordinator."""
        self._lease = KafkaLease(group, listener)
        self._last_error: BaseException | None = None

    def may_act(self) -> bool:
        # the coordinator has removed a member without an identity: its partitions may already have another owner
        return self.group.identity is not None and self._lease.valid

    async def confirm(self) -> bool:
        return await self._lease.confirm()

    def polled(self) -> None:
        self.group.polled()

    # -- start and close ------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Does nothing, because the caller connects the client."""

    async def join(self) -> None:
        """Becomes a member and waits for the first assignment, at most `connect_timeout_s`.

        Returns without an assignment if the rebalance takes longer. Raises `BrokersUnavailable` if no coordinator was
        found in time. Raises `ConfigError` if the brokers or the group do not support the settings. Raises
        `InstanceIdInUse` while another process has the instance id, and `BrokerError` if the coordinator refuses the
        member.
        """
        if self._task is not None:
            raise RuntimeError("join() was called already")
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = start_task(self._run(joined), "membership")
        try:
            await asyncio.wait({joined}, timeout=self._connect_timeout_s)
            if not joined.done():
                failure = self.group.failure
                if self.group.coordinator is None:
                    where = f"group {self._group_name!r}"
                    if failure is None:
                        raise BrokersUnavailable(f"{where} has no coordinator after {self._connect_timeout_s:g} s")
                    missing = failure.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                    hint = "; check that its offsets topic is available" if missing else ""
                    raise BrokersUnavailable(
                        f"{where} could not be joined within {self._connect_timeout_s:g} s; last: {failure}{hint}"
                    )
                if failure is not None and failure.code == ErrorCode.UNRELEASED_INSTANCE_ID:
                    raise InstanceIdInUse(
                        f"group {self._group_name!r} could not be joined within {self._connect_timeout_s:g} s: another "
                        f"process has its instance id, or had it and has not left ({failure}); give each process an "
                        "instance id of its own, or start again when the session of the other one has ended"
                    )
                log.info(
                    "%s: no assignment yet; this member gets partitions when the rebalance ends%s",
                    self._group_name,
                    f" (last: {failure})" if failure is not None else "",
                )
                joined.set_result(None)
            joined.result()
        except BaseException:
            await self.abandon()
            raise

    def leave_for_good(self) -> None:
        self.group.for_good = True

    async def leave(self) -> None:
        if self._task is None:
            return
        self.group.leave()
        await self._until_left()

    async def _run(self, joined: asyncio.Future[None]) -> None:
        remove = self._client.on_metadata(self._metadata_came)
        try:
            await self._begin()
            await TaskGroup().run(self.group.run(joined), topics=self._poll_topics())
            if not self.group.closing:
                self.ended = self._last_error
        except Exception as error:
            log.exception("%s: the membership ended", self._group_name)
            self.ended = error
            self._listener.failed(error)
        finally:
            remove()
            await self.lost("the membership ended")

    # -- implemented by the subclass ------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Prepares the member. Called once, before the first request."""
        raise NotImplementedError

    async def _poll_topics(self) -> None:
        """Polls the metadata for new topics and partitions until cancelled. No broker announces them."""
        raise NotImplementedError

    def _metadata_came(self) -> None:
        raise NotImplementedError

    # -- commits --------------------------------------------------------------------------------------------------

    @property
    def committer(self) -> Committer:
        return self

    @property
    def identity(self) -> Identity | None:
        return self.group.identity

    def may_commit(self, partition: TopicPartition) -> bool:
        return partition in self.tenures.assignment

    def refused(self, code: int, sent: Identity) -> bool | None:
        return self.group.refused(code, sent)

    # -- called by the protocol -----------------------------------------------------------------------------------

    async def lost(self, why: str) -> None:
        self._lease.end()
        lost = self.tenures.lose()
        if lost:
            log.warning("%s: lost %d partitions: %s", self._group_name, len(lost), why)
            await self._listener.lost(lost)

    def failed(self, error: BaseException) -> None:
        self._last_error = error
        self._listener.failed(error)
