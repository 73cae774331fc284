"""KafkaMembership against a scripted coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from allocator.core.client.client import KafkaClient
from allocator.core.client.offset_messages import Identity
from allocator.errors import AllocatorError, BrokersUnavailable, ConfigError, Fenced
from allocator.protocols.kafka_classic.consumer_protocol import MemberAssignment, Subscription, generation_from
from allocator.protocols.kafka_classic.group import GroupPhase
from allocator.protocols.kafka_classic.membership import KafkaMembership
from allocator.protocols.kafka_classic.settings import KafkaSettings
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition
from tests.client.fake_broker import SILENT
from tests.groups.fake_group import GroupBroker
from tests.groups.kafka_members import ClassicMember
from tests.groups.members import History
from tests.lag_assignor import by_lag
from tests.offsets.offset_responses import commit_response

pytestmark = pytest.mark.deadline(90)

METADATA, COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, FIND = 3, 8, 11, 12, 13, 14, 10
FAST = {"session_timeout_s": 30.0, "heartbeat_interval_s": 0.02, "retry_backoff_s": 0.001, "failure_pause_s": 0.02}
RARE_HEARTBEATS = {"heartbeat_interval_s": 15.0}
ALL = frozenset(TopicPartition("t", n) for n in range(3))


def broker_with_topic(versions: Mapping[int, tuple[int, int]] | None = None) -> GroupBroker:
    broker = GroupBroker(versions)
    broker.topics = {"t": [1, 1, 1]}
    return broker


def member(broker: GroupBroker, assignor: Any = "range", **options: Any) -> ClassicMember:
    timing = {**FAST, **options.pop("timing", {})}
    topics = options.pop("topics", ["t"])
    return ClassicMember(broker.address, "g", topics, assignors=[assignor], timing=timing, history=History(), **options)


@contextlib.asynccontextmanager
async def joining(member: ClassicMember) -> AsyncIterator[asyncio.Future[Any]]:
    """Starts to join. After the block the member leaves."""
    async with contextlib.AsyncExitStack() as stack:
        task = asyncio.ensure_future(stack.enter_async_context(member))
        yield task
        await task


def assign(broker: GroupBroker, assignment: bytes) -> None:
    """Has the broker assign this to its member from now on."""
    sync = broker.handlers[SYNC]

    async def scripted(request: Any) -> Any:
        response = await sync(request)
        response.assignment = assignment
        return response

    broker.handlers[SYNC] = scripted


def ids(broker: GroupBroker, key: int = JOIN) -> list[str]:
    return [request.member_id for request in broker.requests(key)]


def subscription(request: Any) -> Subscription:
    return Subscription.decode(request.protocols[0].metadata)


def events(member: ClassicMember) -> list[str]:
    return [what for _, _, what, _ in member.owner.history.events]


async def holds(member: ClassicMember, parts: frozenset[TopicPartition]) -> None:
    await wait_until_async(lambda: member.held == parts, 30, lambda: f"{sorted(member.held)} to be {sorted(parts)}")


async def more(broker: GroupBroker, key: int, times: int = 1) -> None:
    """Waits for this many more requests."""
    goal = broker.count(key) + times
    await wait_until_async(lambda: broker.count(key) >= goal, 30, f"{times} requests of API {key}", interval_s=0.002)


async def generation(member: ClassicMember, number: int) -> None:
    await wait_until_async(lambda: member.membership.generation == number, 30, f"generation {number}")


# -- joining ----------------------------------------------------------------------------------------------------------


async def test_a_member_takes_its_id_joins_leads_syncs_and_leaves() -> None:
    async with broker_with_topic() as broker:
        async with member(broker) as one:
            await holds(one, ALL)
            assert one.membership.held == ALL
            assert one.membership.leading
            assert (one.membership.member_id, one.membership.generation) == ("member-1", 1)
            assert one.membership.may_act()
            assert ids(broker) == ["", "member-1"]
            (sync,) = broker.requests(SYNC)
            assert (sync.generation_id, sync.member_id, len(sync.assignments)) == (1, "member-1", 1)
            first = broker.requests(JOIN)[0]
            assert (first.session_timeout_ms, first.rebalance_timeout_ms, first.reason) == (30000, 20000, "first join")
        assert events(one) == ["begin", "end"]
        assert not one.membership.may_act()
        assert [each.member_id for each in broker.requests(LEAVE)[0].members] == ["member-1"]


@pytest.mark.parametrize("join", range(10))
async def test_every_version_of_join_group_from_0_9_on(join: int) -> None:
    versions = {JOIN: (0, join), SYNC: (0, min(join, 5)), HEARTBEAT: (0, min(join, 4)), LEAVE: (0, min(join, 5))}
    async with broker_with_topic(versions) as broker:
        async with member(broker) as one:
            await holds(one, ALL)
            await more(broker, HEARTBEAT, 2)
            assert join == broker.requests(JOIN)[-1].API_VERSION
            assert one.membership.group.rebalance_timeout_s == (20.0 if join else 30.0)
        assert broker.count(LEAVE) == 1


async def test_a_coordinator_that_accepts_no_connection_is_looked_up_again() -> None:
    async with broker_with_topic() as broker:
        async with GroupBroker() as gone:
            pass
        find = broker.handlers[FIND]

        def stale(request: Any) -> Any:
            response = find(request)
            if broker.count(FIND) < 3:
                response.node_id, response.port = 7, gone.port
            return response

        broker.handlers[FIND] = stale
        async with member(broker) as one:
            await holds(one, ALL)
            assert one.membership.group.coordinator == 1


@pytest.mark.parametrize("code", [7, 14, 15, 16, 27, 111])
async def test_a_join_that_may_succeed_later_is_repeated_after_one_preparation(code: int) -> None:
    async with broker_with_topic() as broker:
        broker.codes[JOIN] = [code, code]
        one, prepared = member(broker, timing=RARE_HEARTBEATS), []
        prepare = one.membership.prepare

        async def counted() -> None:
            prepared.append(len(ids(broker)))
            await prepare()

        one.membership.prepare = counted  # type: ignore[method-assign]
        async with one:
            await holds(one, ALL)
            assert prepared == [0]
            assert len(ids(broker)) == 4
            assert (broker.count(FIND) > 1) == (code in (15, 16))


@pytest.mark.parametrize(
    ("versions", "instance_id", "why"),
    [({JOIN: None}, None, r"older than 0\.9"), ({JOIN: (0, 4)}, "a", r"2\.3")],
    ids=["no groups", "no static members"],
)
async def test_a_broker_that_lacks_the_protocol_is_named(versions: Any, instance_id: str | None, why: str) -> None:
    async with broker_with_topic() as broker:
        broker.versions = {key: range_ for key, range_ in {**broker.versions, **versions}.items() if range_}
        with pytest.raises(ConfigError, match=why):
            async with member(broker, timing={"instance_id": instance_id}):
                pass


@pytest.mark.parametrize("code", [23, 24, 26, 30, 35, 42, 81])
async def test_a_join_that_cannot_succeed_raises_the_reason(code: int) -> None:
    async with broker_with_topic() as broker:
        broker.codes[JOIN] = [code]
        with pytest.raises(AllocatorError, match="'g': cannot join"):
            async with member(broker):
                pass


async def test_join_raises_after_its_timeout_what_prevents_it() -> None:
    async with broker_with_topic() as broker:
        find = broker.handlers[FIND]

        def unavailable(request: Any) -> Any:
            response = find(request)
            response.error_code = 15
            return response

        broker.handlers[FIND] = unavailable
        with pytest.raises(BrokersUnavailable, match=r"within 2 s; last: .* cannot find .* offsets topic"):
            await member(broker, connect_timeout_s=2.0).__aenter__()
        broker.codes[JOIN] = [0, *[16] * 10_000]

        async def known_three_times(request: Any) -> Any:
            if broker.count(JOIN) > 3:
                await asyncio.Event().wait()  # a JoinGroup under way at the deadline could be held back
            return find(request)

        broker.handlers[FIND] = known_three_times
        with pytest.raises(BrokersUnavailable, match=r"within 3 s; last: .*cannot join: NOT_COORDINATOR"):
            await member(broker, connect_timeout_s=3.0).__aenter__()


async def test_join_does_not_wait_for_a_rebalance_that_takes_long() -> None:
    """Heartbeats that report the rebalance meanwhile cause no other one."""
    async with broker_with_topic({JOIN: (0, 0)}) as broker:
        broker.gates[SYNC] = asyncio.Event()
        async with member(broker, connect_timeout_s=2.0) as one:
            assert one.membership.group.phase is GroupPhase.SYNCING
            broker.codes[HEARTBEAT] = [27] * 3
            await more(broker, HEARTBEAT, 5)
            broker.gates[SYNC].set()
            await holds(one, ALL)
            await more(broker, HEARTBEAT, 3)
            assert len(ids(broker)) == 1


@pytest.mark.parametrize("join", [0, 3, 9])
async def test_a_first_join_to_a_hung_coordinator_is_abandoned(join: int) -> None:
    """The member sends no heartbeats before its first generation, whether or not it gets its id first."""
    async with broker_with_topic({JOIN: (0, join)}) as old, broker_with_topic({JOIN: (0, join)}) as new:
        find = old.handlers[FIND]
        new.generation = 5
        old.silent = {JOIN}
        async with joining(member(old, timing={"session_timeout_s": 0.6, "heartbeat_interval_s": 0.02})) as joined:
            await wait_until_async(lambda: ids(old), 30, "the join without a response")
            await more(old, FIND, 3)  # the member checks whether the coordinator lives
            assert len(ids(old)) == 1  # it does, so the join may take long

            def moved(request: Any) -> Any:
                response = find(request)
                response.node_id, response.port = 2, new.port
                return response

            hung = asyncio.Event()

            async def first_hangs(request: Any) -> Any:
                if not hung.is_set():
                    hung.set()
                    return SILENT
                return moved(request)

            old.handlers[FIND] = first_hangs
            one = await joined
            assert len(ids(old)) == 1
            assert ids(new)[0] == ""
            assert one.membership.group.coordinator == 2


async def test_a_first_join_continues_while_a_silent_coordinator_has_no_successor() -> None:
    async with broker_with_topic() as broker:
        broker.gates[JOIN] = asyncio.Event()
        one = member(broker, timing={"session_timeout_s": 0.3})
        async with joining(one) as joined:
            await wait_until_async(lambda: ids(broker), 30, "the join")
            find = broker.handlers[FIND]
            broker.handlers[FIND] = lambda request: SILENT
            await more(broker, FIND, 2)
            broker.handlers[FIND] = find
            await wait_until_async(lambda: one.membership.group.coordinator is not None, 30, "a response")
            assert len(ids(broker)) == 1
            broker.gates[JOIN].set()
            await joined


# -- rebalances -------------------------------------------------------------------------------------------------------


async def test_a_cooperative_member_releases_what_moves_and_joins_again() -> None:
    async with broker_with_topic() as broker, member(broker, "cooperative-sticky") as one:
        await holds(one, ALL)
        assign(broker, MemberAssignment(frozenset({TopicPartition("t", 0)})).encode())
        broker.codes[HEARTBEAT] = [27]
        await holds(one, frozenset({TopicPartition("t", 0)}))
        await generation(one, 3)
        claim = subscription(broker.requests(JOIN)[-1])
        assert (claim.owned, claim.generation) == (frozenset({TopicPartition("t", 0)}), 2)


async def test_a_claim_names_the_newest_joined_generation_even_if_it_was_not_synced() -> None:
    """Java leaders of 2.8 to 3.3 reassign a partition at once if another member claims it since a newer generation."""
    async with broker_with_topic() as broker, member(broker, "cooperative-sticky") as one:
        await holds(one, ALL)
        broker.codes[SYNC] = [27]  # the next rebalance begins before this one ends
        broker.codes[HEARTBEAT] = [27]
        await generation(one, 3)
        claims = list(map(subscription, broker.requests(JOIN)[2:]))
        assert [(each.generation, generation_from(each.user_data), each.owned) for each in claims] == [
            (1, 1, ALL),
            (2, 2, ALL),
        ]
        assert events(one) == ["begin"]


async def test_a_rebalance_soon_after_another_is_noticed_before_the_usual_interval() -> None:
    timing = {"session_timeout_s": 3000.0, "heartbeat_interval_s": 900.0}
    async with broker_with_topic() as broker, member(broker, timing=timing) as one:
        broker.codes[HEARTBEAT] = [0, 0, 27, 0, 27]
        await generation(one, 3)


async def test_a_member_that_releases_may_commit_and_its_heartbeats_keep_the_lease() -> None:
    async with broker_with_topic() as broker, member(broker, timing={"session_timeout_s": 1.0}) as one:
        await holds(one, ALL)
        one.owner.may_drain.clear()
        broker.codes[HEARTBEAT] = [27] * 10_000
        await wait_until_async(one.owner.draining.is_set, 30, "the release")
        assert all(one.membership.may_commit(p) for p in ALL)
        assert one.membership.held == frozenset()
        await more(broker, HEARTBEAT, 60)  # for longer than a session
        assert one.membership.identity == Identity(1, "member-1", None)
        assert one.membership.may_act()
        broker.codes[HEARTBEAT] = []
        one.owner.may_drain.set()
        await generation(one, 2)
        await holds(one, ALL)
        assert (ids(broker)[-1], events(one)) == ("member-1", ["begin", "end", "begin"])


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("held", [JOIN, SYNC])
async def test_a_subscription_that_changes_during_a_rebalance_is_not_lost(held: int, assignor: str) -> None:
    async with broker_with_topic() as broker, member(broker, assignor) as one:
        broker.topics |= {"u": [1], "v": [1]}
        await holds(one, ALL)
        broker.gates[held] = asyncio.Event()
        requests = broker.count(held)
        one.membership.subscribe(["u"])
        await wait_until_async(lambda: broker.count(held) > requests, 30, "the rebalance")
        one.membership.subscribe(["v"])
        broker.gates[held].set()
        await holds(one, frozenset({TopicPartition("v", 0)}))
        began = [p.topic for _, _, what, parts in one.owner.history.events if what == "begin" for p in parts]
        assert "u" not in began  # partitions of the old subscription are not started


async def test_a_subscription_that_changes_while_partitions_drain_is_not_lost() -> None:
    async with broker_with_topic() as broker, member(broker) as one:
        broker.topics |= {"u": [1], "v": [1]}
        await holds(one, ALL)
        one.owner.may_drain.clear()
        one.membership.subscribe(["u"])
        await wait_until_async(one.owner.draining.is_set, 30, "the release")
        one.membership.subscribe(["v"])
        one.owner.may_drain.set()
        await holds(one, frozenset({TopicPartition("v", 0)}))
        assert broker.generation == 2


@pytest.mark.parametrize("how", [{"topics": ["t"]}, {"topics": [], "pattern": "t.*"}])
async def test_a_topic_counts_as_missing_only_if_brokers_report_that_for_a_while(how: dict[str, Any]) -> None:
    """A starting broker reports topics as missing; a deleted topic stays missing."""
    async with broker_with_topic() as broker, member(broker, topic_poll_s=0.05, **how) as one:
        await holds(one, ALL)
        topics = broker.topics
        broker.topics = {}
        await more(broker, METADATA)
        broker.topics = topics
        await more(broker, METADATA)
        assert broker.generation == 1
        broker.topics = {}
        await holds(one, frozenset())
        broker.topics = topics
        await holds(one, ALL)
        assert events(one) == ["begin", "end", "begin"]


async def test_a_member_whose_assignment_cannot_be_read_owns_nothing_until_it_gets_a_good_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, b"\x00\x00\x7f\xff\xff\xff")
        async with member(broker) as one:
            await more(broker, JOIN, 3)
            assert one.held == frozenset()
            assign(broker, MemberAssignment(ALL).encode())
            await holds(one, ALL)
            assert one.owner.errors == []
            joins = broker.count(JOIN)
            await more(broker, HEARTBEAT, 5)
            assert broker.count(JOIN) == joins
    lines = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(lines) == 1
    assert "another" in lines[0]  # the member id of the leader


async def test_partitions_that_do_not_exist_are_not_taken_until_they_do(caplog: pytest.LogCaptureFixture) -> None:
    beyond = {TopicPartition("t", n) for n in (-1, 3, 4, 99_999_999)}
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, MemberAssignment(ALL | beyond).encode())
        async with member(broker) as one:
            await holds(one, ALL)
            assert "another, assigned 4 partitions that do not exist" in caplog.text
            broker.topics = {"t": [1, 1, 1, 1]}
            await holds(one, ALL | {TopicPartition("t", 3)})
            assert one.owner.errors == []


async def test_a_partition_that_is_newer_than_the_metadata_of_the_member_is_taken_at_once() -> None:
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, MemberAssignment(ALL).encode())
        async with member(broker, topic_poll_s=600.0) as one:
            await holds(one, ALL)
            broker.topics = {"t": [1, 1, 1, 1]}
            assign(broker, MemberAssignment(ALL | {TopicPartition("t", 3)}).encode())
            broker.codes[HEARTBEAT].append(27)
            await holds(one, ALL | {TopicPartition("t", 3)})
            assert broker.count(JOIN) == 3  # the first one got a member id


async def test_no_tenure_begins_for_the_many_partitions_that_do_not_exist() -> None:
    many = MemberAssignment(frozenset(TopicPartition("t", n) for n in range(200_000))).encode()
    too_many = b"\0\0\0\0\0\x01\0\x01t" + (2_000_000).to_bytes(4, "big") + 8_000_000 * b"\0"
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, many)
        async with member(broker) as one:
            await holds(one, ALL)
            assign(broker, too_many)
            broker.codes[HEARTBEAT].append(27)
            await holds(one, frozenset())
            assert one.owner.errors == []


async def test_a_follower_gets_only_partitions_of_subscribed_topics() -> None:
    async with broker_with_topic() as broker:
        broker.leads = False
        assign(broker, MemberAssignment(ALL | {TopicPartition("other", 0)}).encode())
        async with member(broker) as one:
            await holds(one, ALL)
            assert one.membership.held == ALL
            assert len(broker.requests(SYNC)[0].assignments) == 0


# -- refused requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "code", "lost", "new_id"),
    [
        *((api, 22, True, False) for api in (JOIN, SYNC, HEARTBEAT)),
        *((api, code, True, True) for api in (JOIN, SYNC, HEARTBEAT) for code in (25, 110)),
        *((SYNC, code, False, False) for code in (7, 14, 15, 16, 27)),
    ],
)
async def test_a_refused_member_joins_again_and_loses_its_partitions_if_it_was_removed(
    api: int, code: int, lost: bool, new_id: bool
) -> None:
    async with broker_with_topic() as broker, member(broker, "cooperative-sticky") as one:
        await holds(one, ALL)
        lookups = broker.count(FIND)
        broker.codes[api] = [code]
        if api != HEARTBEAT:
            one.membership.group.request_rejoin("a test")
        await wait_until_async(lambda: one.membership.generation > 1 and one.held == ALL, 30, "the next membership")
        assert one.membership.member_id == ("member-2" if new_id else "member-1")
        assert events(one) == (["begin", "lost", "begin"] if lost else ["begin"])
        assert one.membership.may_act()
        assert lost or (broker.count(FIND) > lookups) == (code in (15, 16))


@pytest.mark.parametrize("api", [JOIN, SYNC, HEARTBEAT])
async def test_a_fenced_instance_loses_everything_and_stops(api: int) -> None:
    async with broker_with_topic() as broker, member(broker, timing={"instance_id": "one"}) as one:
        await holds(one, ALL)
        broker.codes[api] = [82]
        if api != HEARTBEAT:
            one.membership.group.request_rejoin("a test")
        await wait_until_async(lambda: one.owner.errors, 30, "the error")
        assert "instance 'one'" in str(one.owner.errors[0])
        assert not one.held
        assert not one.membership.may_act()
        await wait_until_async(lambda: one.membership.ended is one.owner.errors[0], 30, "the end")
        await one.membership.leave()
        assert broker.requests(LEAVE) == []


@pytest.mark.parametrize("code", [14, 15, 16])
async def test_a_coordinator_that_is_loading_or_moved_costs_nothing(code: int) -> None:
    async with broker_with_topic() as broker, member(broker) as one:
        await holds(one, ALL)
        broker.codes[HEARTBEAT] = [code]
        lookups = broker.count(FIND)
        await more(broker, HEARTBEAT, 3)
        assert (broker.count(FIND) > lookups) == (code != 14)
        assert one.membership.identity == Identity(1, "member-1", None)
        assert len(ids(broker)) == 2


@pytest.mark.parametrize("refused", [False, True], ids=["silent", "refused"])
async def test_the_lease_lapses_before_the_session_and_returns_with_an_acknowledgement(refused: bool) -> None:
    async with broker_with_topic() as broker, member(broker, timing={"session_timeout_s": 4.0}) as one:
        await holds(one, ALL)
        if refused:
            broker.codes[HEARTBEAT] = [30] * 10_000
        else:
            broker.silent = {HEARTBEAT}
        await wait_until_async(lambda: one.owner.suspensions and not one.membership.may_act(), 30, "the suspension")
        assert bool(one.owner.errors) == refused
        assert one.held == ALL  # ownership is unchanged
        broker.silent, broker.codes[HEARTBEAT] = set(), []
        await wait_until_async(one.membership.may_act, 30, "the lease")
        begin, *pauses = events(one)
        assert (begin, set(pauses)) == ("begin", {"pause", "go on"})


async def test_a_loss_while_releasing_ends_the_release() -> None:
    async with broker_with_topic() as broker, member(broker) as one:
        await holds(one, ALL)
        one.owner.may_drain.clear()
        broker.codes[HEARTBEAT] = [27, 27, 25]
        await wait_until_async(lambda: one.owner.lost_partitions == ALL, 30, "the loss")
        assert events(one)[:2] == ["begin", "lost"]
        one.owner.may_drain.set()


# -- commits ----------------------------------------------------------------------------------------------------------


def take_commits(broker: GroupBroker, codes: list[int] | None = None) -> list[tuple[int, int]]:
    """Makes the broker accept only commits of its present generation. Returns the list of their (generation, code)."""
    seen: list[tuple[int, int]] = []

    def commit(request: Any) -> Any:
        code = codes.pop(0) if codes else 0 if request.generation_id_or_member_epoch == broker.generation else 22
        seen.append((request.generation_id_or_member_epoch, code))
        return commit_response(request, lambda partition, offset: code)

    broker.handlers[COMMIT] = commit
    return seen


FIRST = {TopicPartition("t", 0): OffsetAndMetadata(3, "", -1)}


@pytest.mark.parametrize("assignor", ["cooperative-sticky", by_lag])
async def test_a_commit_that_races_the_response_of_a_join_costs_nothing(assignor: Any) -> None:
    async with broker_with_topic() as broker, member(broker, assignor) as one:
        await holds(one, ALL)
        commits = take_commits(broker)
        join, responded, go = broker.handlers[JOIN], asyncio.Event(), asyncio.Event()

        async def late(request: Any) -> Any:
            response = await join(request)  # from here on the coordinator is in the next generation
            responded.set()
            await go.wait()
            return response

        broker.handlers[JOIN] = late
        broker.codes[HEARTBEAT] = [27]
        await asyncio.wait_for(responded.wait(), 30)
        commit = asyncio.ensure_future(one.offsets.commit(FIRST))
        await wait_until_async(lambda: commits, 30, "a refused commit")
        assert commits[0] == (1, 22)
        go.set()
        await commit
        assert commits[-1] == (2, 0)
        assert events(one) == ["begin"]
        assert one.membership.held == ALL
        # a late refusal of the earlier generation does not concern the present one
        assert one.membership.refused(22, Identity(1, "member-1", None))
        assert one.membership.may_act()


@pytest.mark.parametrize("code", [22, 25, 82])
async def test_a_commit_that_shows_the_loss_of_the_membership_ends_the_lease_at_once(code: int) -> None:
    async with broker_with_topic() as broker, member(broker, timing={"instance_id": "one"}) as one:
        await holds(one, ALL)
        take_commits(broker, [code])
        with pytest.raises(Fenced):
            await one.offsets.commit(FIRST)
        assert not one.membership.may_act()  # before another task runs
        await wait_until_async(lambda: one.owner.lost_partitions == ALL, 30, "the loss")
        if code != 82:
            await generation(one, 2)


# -- leaving ----------------------------------------------------------------------------------------------------------


async def test_leaving_releases_everything_first_and_heartbeats_continue_meanwhile() -> None:
    async with broker_with_topic() as broker, member(broker) as one:
        await holds(one, ALL)
        one.owner.may_drain.clear()
        leaving = asyncio.ensure_future(one.membership.leave())
        await wait_until_async(one.owner.draining.is_set, 30, "the release")
        await more(broker, HEARTBEAT, 3)
        assert broker.requests(LEAVE) == []
        one.owner.may_drain.set()
        await leaving
        assert broker.count(LEAVE) == 1
        assert one.membership.identity is None


@pytest.mark.parametrize("code", [14, 15, 16, 25, 82])
async def test_a_leave_is_repeated_where_that_helps(code: int) -> None:
    async with broker_with_topic() as broker:
        async with member(broker):
            broker.codes[LEAVE] = [code]
        assert broker.count(LEAVE) == (1 if code in (25, 82) else 2)


async def test_a_static_member_never_leaves() -> None:
    async with broker_with_topic() as broker:
        async with member(broker, timing={"instance_id": "one"}) as one:
            await holds(one, ALL)
            assert broker.requests(JOIN)[0].group_instance_id == "one"
            assert broker.requests(SYNC)[0].group_instance_id == "one"
        assert broker.requests(LEAVE) == []


async def test_leaving_does_not_wait_for_a_join_under_way() -> None:
    async with broker_with_topic() as broker, member(broker) as one:
        await holds(one, ALL)
        broker.gates[JOIN] = asyncio.Event()
        one.membership.group.request_rejoin("a test")
        await more(broker, JOIN)
        await one.membership.leave()
        assert broker.count(LEAVE) == 1


async def test_leaving_in_a_first_join_of_an_old_broker_leaves_no_unknown_member_behind() -> None:
    async with broker_with_topic({JOIN: (0, 3)}) as broker:
        broker.gates[JOIN] = asyncio.Event()
        one = member(broker)
        await one.client.connect(20)
        join = asyncio.ensure_future(one.membership.join())
        await wait_until_async(lambda: len(ids(broker)) == 1, 30, "the join")
        asyncio.get_running_loop().call_later(0.05, broker.gates[JOIN].set)
        await one.membership.leave()
        await asyncio.wait({join})
        await one.client.close()
        assert [each.member_id for each in broker.requests(LEAVE)[0].members] == ["member-1"]


async def test_a_leader_that_fails_at_what_members_wrote_joins_again() -> None:
    async with broker_with_topic() as broker:
        one = member(broker)
        compute, failures = one.membership.compute_assignment, [IndexError("a bug"), TypeError("another one")]

        async def fails(*joined: Any) -> Any:
            if failures:
                raise failures.pop()
            return await compute(*joined)

        one.membership.compute_assignment = fails  # type: ignore[method-assign]
        async with one:
            await holds(one, ALL)
            assert not failures
            assert one.membership.ended is None
            assert one.owner.errors == []


async def test_a_listener_that_raises_ends_the_membership_with_its_error() -> None:
    async with broker_with_topic() as broker:
        one = member(broker)

        async def raises(partitions: object) -> None:
            raise ValueError("a bug")

        one.owner.assigned = raises  # type: ignore[method-assign, assignment]
        async with one:
            await wait_until_async(lambda: one.owner.lost_partitions == ALL, 30, "the loss")
            assert not one.membership.may_act()
            await wait_until_async(lambda: "a bug" in str(one.membership.ended), 30, "the end")
            assert broker.count(LEAVE) == 1  # the others need not wait for the end of its session


# -- settings ---------------------------------------------------------------------------------------------------------


def test_wrong_settings_are_refused() -> None:
    client, owner = KafkaClient("127.0.0.1:1"), ClassicMember("127.0.0.1:1", "g", []).owner
    with pytest.raises(ConfigError, match="allocator function"):
        KafkaMembership(client, "g", owner, {}, KafkaSettings())
    with pytest.raises(ConfigError, match="regular expression"):
        ClassicMember("127.0.0.1:1", "g", [], pattern="(")
    with pytest.raises(ConfigError, match="half of session_timeout_s"):
        KafkaSettings(heartbeat_interval_s=6.0)
