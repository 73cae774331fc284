"""Histories that were once told apart by a fault, or that show a difference with a reason."""

from __future__ import annotations

from collections.abc import Mapping

from tests.outside.twin.history import (
    Commit,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    End,
    Extend,
    Freeze,
    History,
    Kill,
    Mark,
    Pause,
    Produce,
    Read,
    Resume,
    Seek,
    Start,
    Stop,
    Take,
    Thaw,
    Wait,
)

AGAIN = (Start("b"), Read(), Mark(), Stop("b"), Mark())  # another process of the group reads what is left

FIXED: Mapping[str, History] = {
    "records read one by one, in parts and in batches": History(
        (
            Start("a"), Produce(0, 10), Take(0, 1), Take(0, 1), Take(0, 3), Mark(), Produce(0, 5), Take(0, 7), Read(),
            Mark(), Stop("a"), Mark(), *AGAIN,
        )
    ),
    "latest, stopped before the first record": History(
        (Produce(0, 5), Start("a"), Stop("a"), Mark(), Produce(0, 10), *AGAIN), reset="latest"
    ),
    "latest, moved to a live member before the first record": History(
        (Produce(0, 5), Start("a"), Start("b"), Mark(), Stop("a"), Produce(0, 4), Produce(1, 4), Read(), Mark(),
         Stop("b"), Produce(0, 3), *AGAIN),
        partitions=2, reset="latest",
    ),
    "latest, committed before the first record and killed": History(
        (Produce(0, 5), Start("a"), Commit(), Mark(), Kill("a"), Produce(0, 10), *AGAIN), auto=False, reset="latest"
    ),
    "the marker of a transaction": History(
        (Start("a"), Produce(0, 5, "committed"), Read(), Mark(), Stop("a"), Mark(), *AGAIN), committed=True
    ),
    "an aborted tail": History(
        (Start("a"), Produce(0, 5), Read(), Mark(), Produce(0, 5, "aborted"), Read(), Mark(), Stop("a"), Mark(),
         *AGAIN),
        committed=True,
    ),
    "an aborted tail that is read": History(
        (Start("a"), Produce(0, 5), Produce(0, 5, "aborted"), Read(), Mark(), Stop("a"), Mark(), *AGAIN)
    ),
    "only aborted records": History(
        (Produce(0, 5, "aborted"), Start("a"), Read(), Mark(), Stop("a"), Mark(), Produce(0, 2), *AGAIN), committed=True
    ),
    "an open transaction that is committed": History(
        (Start("a"), Produce(0, 4), Produce(0, 4, "open"), Read(), Mark(), Stop("a"), Mark(), End(0, commit=True),
         Produce(0, 2), *AGAIN),
        committed=True,
    ),
    "an open transaction that is aborted under a reader": History(
        (Start("a"), Produce(0, 4, "open"), Read(), Mark(), End(0, commit=False), Produce(0, 2), Read(), Mark(),
         Stop("a"), Mark(), *AGAIN),
        committed=True,
    ),
    "a log emptied behind the reader": History(
        (Start("a"), Produce(0, 8), Read(), Mark(), DeleteRecords(0), Wait(0.5), Mark(), Produce(0, 3), Read(), Mark(),
         Stop("a"), *AGAIN)
    ),
    "a log emptied before the group begins": History(
        (Produce(0, 8), DeleteRecords(0), Start("a"), Read(), Mark(), Stop("a"), Mark(), Produce(0, 3), *AGAIN)
    ),
    "a log emptied between two members": History(
        (Produce(0, 8), Start("a"), Take(0, 3), Stop("a"), Mark(), DeleteRecords(0), Start("b"), Read(), Mark(),
         Stop("b"), Mark(), Produce(0, 3), *AGAIN)
    ),
    "records deleted beyond the committed offset": History(
        (Produce(0, 8), Start("a"), Take(0, 3), Stop("a"), DeleteRecords(0, 6), *AGAIN)
    ),
    "a seek back and a close": History(
        (Produce(0, 10), Start("a"), Read(), Mark(), Seek(0, 3), Stop("a"), Mark(), *AGAIN)
    ),
    "a seek forward and a close": History(
        (Produce(0, 10), Start("a"), Take(0, 2), Mark(), Seek(0, 7), Stop("a"), Mark(), *AGAIN)
    ),
    "a seek before the first record": History(
        (Produce(0, 10), Start("a"), Seek(0, 4), Take(0, 2), Mark(), Stop("a"), Mark(), *AGAIN)
    ),
    "a seek beyond the end": History(
        (Produce(0, 10), Start("a"), Read(), Mark(), Seek(0, -5), Read(), Mark(), Stop("a"), Mark(), *AGAIN)
    ),
    "a seek beyond the end, to the latest": History(
        (Start("a"), Produce(0, 10), Read(), Mark(), Seek(0, -5), Read(), Mark(), Produce(0, 2), Read(), Mark(),
         Stop("a"), Mark(), *AGAIN),
        reset="latest",
    ),
    "a commit without offsets after a seek": History(
        (Produce(0, 10), Start("a"), Read(), Seek(0, 4), Commit(), Mark(), Take(0, 2), Commit(), Mark(), Stop("a"),
         *AGAIN),
        auto=False,
    ),
    "a seek that is not committed": History(
        (Produce(0, 10), Start("a"), Take(0, 5), Commit(), Seek(0, 9), Stop("a"), Mark(), *AGAIN), auto=False
    ),
    "a pause in the middle of a batch": History(
        (Produce(0, 20), Start("a"), Take(0, 5), Pause(0), Produce(0, 3), Wait(0.5), Mark(), Resume(0), Take(0, 4),
         Mark(), Read(), Mark(), Stop("a"), *AGAIN)
    ),
    "a pause of one partition, and a restart": History(
        (Produce(0, 6), Produce(1, 6), Start("a"), Take(0, 2), Take(1, 1), Pause(0), Read(), Mark(), Stop("a"), Mark(),
         Start("b"), Read(), Mark(), Resume(0), Read(), Mark(), Stop("b"), Mark()),
        partitions=2,
    ),
    "commits of the user beside automatic ones": History(
        (Produce(0, 10), Start("a"), Take(0, 6), Commit(0, 2), Mark(), Take(0, 2), Commit(0, 8), Mark(), Read(), Mark(),
         Stop("a"), Mark(), *AGAIN)
    ),
    "a commit back, of the user": History(
        (Produce(0, 10), Start("a"), Read(), Commit(), Mark(), Commit(0, 2), Mark(), Stop("a"), Mark(), *AGAIN),
        auto=False,
    ),
    "a commit ahead of the position": History(
        (Produce(0, 10), Start("a"), Take(0, 3), Commit(0, 7), Mark(), Take(0, 1), Mark(), Stop("a"), Mark(), *AGAIN),
        auto=False,
    ),
    "a commit ahead of the position, and one without offsets": History(
        (Produce(0, 10), Start("a"), Take(0, 3), Commit(0, 7), Mark(), Take(0, 1), Commit(), Mark(), Stop("a"), *AGAIN),
        auto=False,
    ),
    "nothing is committed without a commit": History(
        (Produce(0, 10), Start("a"), Read(), Mark(), Stop("a"), Mark(), *AGAIN), auto=False
    ),
    "a member is killed, and its records come again": History(
        (Start("a"), Produce(0, 10), Take(0, 4), Commit(), Take(0, 3), Mark(), Kill("a"), Mark(), *AGAIN), auto=False
    ),
    "a member is killed, and another takes over": History(
        (Start("a"), Start("b"), Produce(0, 10), Produce(1, 10), Read(), Mark(), Produce(0, 5), Produce(1, 5),
         Kill("a"), Read(), Mark(), Stop("b"), Mark()),
        partitions=2,
    ),
    "two members, and the first one stops": History(
        (Produce(0, 6), Produce(1, 6), Start("a"), Take(0, 3), Take(1, 2), Start("b"), Read(), Mark(), Produce(0, 3),
         Produce(1, 3), Stop("a"), Read(), Mark(), Stop("b"), Mark()),
        partitions=2,
    ),
    "a member is frozen until another has read its records": History(
        (Start("a"), Start("b"), Produce(0, 6), Produce(1, 6), Read(), Mark(), Produce(0, 4), Produce(1, 4),
         Freeze("a"), Read(), Mark(), Thaw("a"), Produce(0, 2), Produce(1, 2), Read(), Mark(), Stop("a"), Stop("b"),
         Mark()),
        partitions=2,
    ),
    "a topic with more partitions": History(
        (Start("a"), Produce(0, 5), Read(), Mark(), Extend(2), Produce(1, 5), Read(), Mark(), Stop("a"), Mark(), *AGAIN)
    ),
    "a topic deleted and created again between two members": History(
        (Produce(0, 10), Start("a"), Read(), Mark(), Stop("a"), DeleteTopic(), CreateTopic(1), Mark(), Produce(0, 15),
         *AGAIN)
    ),
    "a topic deleted and created again under a member": History(
        (Produce(0, 10), Start("a"), Read(), Mark(), DeleteTopic(), Wait(1.0), CreateTopic(1), Produce(0, 15), Read(),
         Mark(), Stop("a"), Mark(), *AGAIN)
    ),
    "a shorter topic is created again under a member": History(
        (Produce(0, 10), Start("a"), Read(), Mark(), DeleteTopic(), CreateTopic(1), Produce(0, 4), Read(), Mark(),
         Produce(0, 3), Read(), Mark(), Stop("a"), Mark(), *AGAIN)
    ),
}  # fmt: skip
