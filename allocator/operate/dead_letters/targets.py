"""Decides whether a letter may be written back to the topic that its headers name. Pure.

Whoever may write to a dead-letter topic chooses these headers, key and value, and a redrive has the rights of its
operator. So a letter never becomes a record by which programs are controlled.
"""

from __future__ import annotations

import re

from allocator.operate.dead_letters.letter import Letter
from allocator.protocols import changes_commands

SETTLED = ".settled"
OFFSET_MAP = ".offset-map"  # of the topics with the offset maps of mirrors (`migrate`)
INTERNAL = "__"  # of Kafka's internal topics, and those of its tools
NOTE_KEY = re.compile(rb"([0-9]{1,9}):([0-9]{1,18})")


def settled_topic(letters: str) -> str:
    """Returns the name of the topic with the notes about the settled letters of a dead-letter topic."""
    return letters + SETTLED


def place_in_note(key: bytes | None) -> tuple[int, int] | None:
    """Returns the partition and offset of the letter that a note with this key is about; None: it is no note's key."""
    found = NOTE_KEY.fullmatch(key or b"")
    return None if found is None else (int(found[1]), int(found[2]))


def refused_target(letter: Letter) -> str | None:
    """Returns why a letter may not be written to its original topic; None: it may.

    A topic of the user can be named like one of commands or notes. So there, only keys of commands and of notes are
    refused, also without a value: compaction would remove the earlier record of the key.
    """
    assert letter.original is not None
    topic, key = letter.original.topic, letter.record.key
    letters = letter.place.topic
    if topic in (letters, settled_topic(letters)):
        return f"no letter comes from {topic!r}, which holds the letters or the notes about them"
    if topic.startswith(INTERNAL):
        return f"no letter comes from {topic!r}, an internal topic of Kafka"
    if topic.endswith(OFFSET_MAP):
        return f"no letter comes from {topic!r}, which has the offset map of a mirror"
    if topic.endswith(SETTLED) and place_in_note(key) is not None:
        return f"in {topic!r} it would be a note that a letter is settled"
    if changes_commands(topic, key):
        return f"in {topic!r} it would be an operator command of a group"
    return None
