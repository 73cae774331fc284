"""Encodes and decodes the text that members add to commits, as their metadata. No I/O.

    text  = [stamp [" done " SET ["@" CLUSTER]] | the user's text] [" topic " UUID ["@" CLUSTER]]
    stamp = "generation " NUMBER " member " MEMBER

The id of the topic lets a later member detect that the topic was deleted and created again. SET encodes a `DoneSet`. It
follows the stamp, so older versions still find the stamp. A topic id and a set are valid in one cluster only, and
MirrorMaker copies commits with their metadata, so the stored text also has the id of the cluster. Brokers before 0.10.1
have none. `as_committed` adds the cluster to the text, and `as_read` removes it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from allocator.core.subscription.done import DoneSet

if TYPE_CHECKING:
    from uuid import UUID

_TEXT: Final = re.compile(
    r"(?:(generation \d+ member ([^ ]*(?: [^ ]*)*?))(?: done ([A-Za-z0-9_-]+)(?:@(\S+))?)?|(|[^ ]*(?: [^ ]*)*?))"
    r"(?:(?:^| )topic ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:@(\S+))?)?"
)


def parts_of(text: str, cluster: str | None = None) -> tuple[str, str | None, str | None, str | None]:
    """Returns the stamp or the user's text, the member, the set and the topic id. The last three may be None.

    A set and a topic id count if they have the cluster `cluster`, or none.
    """
    found = _TEXT.fullmatch(text)
    assert found is not None  # the pattern matches every text
    stamp, member, done, done_cluster, written, topic, topic_cluster = found.groups()
    known = (None, cluster)
    return stamp or written, member, done if done_cluster in known else None, topic if topic_cluster in known else None


def with_done(stamp: str, done: str | None) -> str:
    """Adds an encoded `DoneSet` to the stamp, if there is one."""
    return f"{stamp} done {done}" if done else stamp


@lru_cache(maxsize=4)
def stamped(text: str, topic_id: Any) -> str:
    """Adds the id of the topic to the text. None (unknown) leaves it unchanged."""
    return text if topic_id is None else f"{text} topic {topic_id}".lstrip()


def topic_of(text: str | None) -> UUID | None:
    """Returns the topic id in the text; None if there is none."""
    return uuid_of(parts_of(text)[3] if text else None)


def uuid_of(topic: str | None) -> UUID | None:
    """Returns the topic id as `parts_of` returns it; None for None."""
    from uuid import UUID  # costs time where no commit is read

    return None if topic is None else UUID(topic)


def done_of(text: str | None, offset: int) -> DoneSet | None:
    """Returns the set in the text of a commit of `offset`; None if there is none."""
    done = parts_of(text)[2] if text and " done " in text else None
    return None if done is None else DoneSet.decoded(done, offset)


@lru_cache(maxsize=4)
def as_committed(text: str, cluster: str | None) -> str:
    """Returns the text to store in the cluster with the id `cluster` (None: unknown)."""
    written, _, done, topic = parts_of(text)
    if cluster is None or (done is None and topic is None):
        return text
    return stamped(with_done(written, done and f"{done}@{cluster}"), topic and f"{topic}@{cluster}")


@lru_cache(maxsize=4)
def as_read(text: str, cluster: str | None) -> str:
    """Reverses `as_committed`, and removes the parts that belong to another cluster."""
    written, _, done, topic = parts_of(text, cluster)
    return stamped(with_done(written, done), topic)
