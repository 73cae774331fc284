"""`ConsumerCore` without servers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from allocator.core.consumer.core import ConsumerCore
from allocator.core.consumer.membership_config import MembershipConfig
from allocator.errors import CommitFailed
from allocator.testing import wait_until_async
from allocator.types import OffsetAndMetadata, TopicPartition


def engine(**options: Any) -> ConsumerCore:
    return ConsumerCore(
        MembershipConfig.of(membership="fixed", group="g", client_id="c", topics=("t",)),
        brokers="127.0.0.1:1",
        listener=None,
        auto_commit_interval_s=0.001,
        commit_on_revoke=True,
        auto_offset_reset="earliest",
        **options,
    )


async def test_an_auto_commit_that_is_put_off_says_so_once_and_waits_for_the_lease(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, tries, lease = engine(), 0, False

    async def commit_progress() -> None:
        nonlocal tries
        tries += 1
        if not lease:
            error = CommitFailed("no lease")
            error.retriable = True
            raise error

    monkeypatch.setattr(ours, "commit_progress", commit_progress)
    monkeypatch.setattr(ours.membership, "may_act", lambda: lease)
    with caplog.at_level(logging.WARNING):
        task = asyncio.ensure_future(ours._auto_commit(0.001))
        await wait_until_async(lambda: tries > 0, 30, "the first try")
        for _ in range(50):
            ours.fetcher.wake()
            await asyncio.sleep(0.001)
        assert tries == 1
        lease = True
        ours.fetcher.wake()
        await wait_until_async(lambda: tries > 2, 30, "commits with the lease")
        task.cancel()
        await asyncio.wait({task})
    assert [record.message for record in caplog.records] == ["g: auto-commit put off: no lease"]


async def test_commits_that_fail_again_and_again_are_told_once_and_tried_ever_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, tries = engine(), 0

    async def commit_progress() -> None:
        nonlocal tries
        tries += 1
        error = CommitFailed("not now")
        error.retriable = True
        raise error

    monkeypatch.setattr(ours, "commit_progress", commit_progress)
    monkeypatch.setattr(ours.membership, "may_act", lambda: True)
    with caplog.at_level(logging.WARNING):
        task = asyncio.ensure_future(ours._auto_commit(0.001))
        await wait_until_async(lambda: tries >= 3, 30, "tries")
        task.cancel()
        await asyncio.wait({task})
    assert len(caplog.records) == 1


async def test_a_service_that_lives_shortly_leaves_fresh_offsets_of_what_was_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise they would expire although the service runs every hour."""
    ours, idle, read = engine(), TopicPartition("t", 0), TopicPartition("t", 1)
    stands = {idle: OffsetAndMetadata(5, "as it was", 2), read: OffsetAndMetadata(7, "", -1)}
    sent: list[Any] = []

    async def fetch(partitions: Any, **_: Any) -> Any:
        return {p: stands[p] for p in partitions}

    async def commit(offsets: Any) -> None:
        sent.append(dict(offsets))

    monkeypatch.setattr(ours.offsets, "fetch", fetch)
    monkeypatch.setattr(ours.offsets, "commit", commit)
    monkeypatch.setattr(ours.membership, "may_act", lambda: True)
    ours.state.assign_from_subscribed(stands)
    for partition, committed in stands.items():
        ours.progress.begin(partition, committed)
    ours.progress.hand_out(read, 9)
    ours.progress.finish()
    await ours._leave_fresh()
    assert sent == [{idle: stands[idle]}], "the other one is committed when it is released"
    await ours._leave_fresh()
    assert len(sent) == 1, "it is fresh by now"


async def test_a_fresh_offset_of_a_leaving_member_never_replaces_a_later_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The listener commits while the member reads which offsets are committed."""
    ours, idle = engine(), TopicPartition("t", 0)
    old, later = OffsetAndMetadata(5, "as it was", 2), OffsetAndMetadata(7, "", -1)
    asked, may_answer = asyncio.Event(), asyncio.Event()
    sent: list[Any] = []

    async def fetch(partitions: Any, **_: Any) -> Any:
        asked.set()
        await may_answer.wait()
        return dict.fromkeys(partitions, old)

    async def commit(offsets: Any) -> None:
        sent.append({p: each.offset for p, each in offsets.items()})

    monkeypatch.setattr(ours.offsets, "fetch", fetch)
    monkeypatch.setattr(ours.offsets, "commit", commit)
    monkeypatch.setattr(ours.membership, "may_act", lambda: True)
    ours.state.assign_from_subscribed([idle])
    ours.progress.begin(idle, old)
    ours._refreshing = asyncio.ensure_future(ours._leave_fresh())
    await asked.wait()
    settling = asyncio.ensure_future(ours.commits_settled(frozenset({idle})))
    await ours.commit({idle: later})
    assert not settling.done(), "a release waits for the offsets that are committed again"
    may_answer.set()
    await settling
    assert sent == [{idle: 7}]
