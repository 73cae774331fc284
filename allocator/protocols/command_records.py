"""Decodes the operator commands of a group from a compacted topic, and encodes changes. No I/O.

A group that uses Kafka's own protocols has no znode. Its commands are in the topic `<group>.orders`, with one partition
and `cleanup.policy=compact`:

    key                          value
    o-5f3a9c21                   the command as in the znode, and the format: {"format": 1, "id": "o-5f3a9c21", ...}
    result/o-5f3a9c21/<digest>   a result as in the znode, and the format; one for each set of partitions

A record without a value withdraws the command, or the result, of its key. Only the last record of each key and the
order of these records count, so compaction changes nothing.

Records with other keys, and values that this version cannot read, are ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from dataclasses import replace
from typing import Any, Optional

from allocator.commands import Command, CommandResult, Commands
from allocator.documents import InflateBudget, InvalidZnode, to_ranges
from allocator.errors import ConfigError

COMMAND_KEY = re.compile(rb"o-[0-9a-f]{8,32}\Z")
RESULT_KEY = re.compile(rb"result/(o-[0-9a-f]{8,32})/[0-9a-f]{16}\Z")
MAX_BYTES = 4 * Commands.MAX_BYTES  # total size of all values. Higher: more memory; lower: fewer commands and results

Entry = tuple[bytes, Optional[bytes]]
"""Key and value of a record to write."""


class CommandRecords:
    """Keeps the last record of each key, and decodes the operator commands from them."""

    def __init__(self) -> None:
        self._last: dict[bytes, bytes] = {}
        """Key -> value, in the order of the offsets."""
        self._bytes = 0

    def add(self, key: Optional[bytes], value: Optional[bytes]) -> bool:
        """Adds the next record. Returns whether the record can change the commands. Never raises, even for invalid
        records."""
        if key is None or not (COMMAND_KEY.match(key) or RESULT_KEY.match(key)):
            return False
        self._bytes -= len(self._last.pop(key, b""))
        if value is not None and self._bytes + len(value) <= MAX_BYTES:
            self._last[key] = value
            self._bytes += len(value)
        return True

    @property
    def commands(self) -> Commands:
        return self._decoded()[0]

    def change(self, after: Commands) -> list[Entry]:
        """Returns the records that change the stored commands to `after`, which has no new results.

        These also withdraw the records that have no effect, oldest first. Otherwise a replaced command would take
        effect again when its replacement is withdrawn. Raises ConfigError if the commands take too many bytes.
        """
        before, readable = self._decoded()
        kept = {command.id.encode() for command in after.entries}
        known = {command.id: Commands.encode_entry(command) for command in before.entries}
        wanted = {command.id: Commands.encode_entry(command) for command in after.entries}
        new = [(command_id.encode(), data) for command_id, data in wanted.items() if known.get(command_id) != data]
        size = self._bytes + sum(len(data) for _, data in new)
        if size > MAX_BYTES // 2 and new:
            raise ConfigError(
                f"the operator commands of the group would take {size} bytes, more than {MAX_BYTES // 2}; remove some "
                "first, or give partitions as ranges"
            )
        return [*new, *((key, None) for key in self._last if key in readable and _command_id(key) not in kept)]

    def _decoded(self) -> tuple[Commands, frozenset[bytes]]:
        """Returns the commands, and the keys of the records that this version can read."""
        readable, budget = set[bytes](), InflateBudget()
        by_subject: dict[str, Command] = {}
        results: defaultdict[str, list[CommandResult]] = defaultdict(list)
        for key in sorted(self._last, key=lambda each: bool(RESULT_KEY.match(each))):  # commands before results
            kind: Any = CommandResult if RESULT_KEY.match(key) else Command
            try:
                entry = Commands.decode_entry(kind, key.decode(), self._last[key], budget)
            except InvalidZnode:
                continue
            if isinstance(entry, CommandResult):
                results[_command_id(key).decode()].append(entry)
            elif entry.id.encode() != key or (
                by_subject.pop(entry.subject, None) is None and len(by_subject) >= Commands.MAX_ENTRIES
            ):
                continue
            else:
                by_subject[entry.subject] = entry
            readable.add(key)
        commands = [
            replace(each, results=tuple(results[each.id][: Commands.MAX_RESULTS])) for each in by_subject.values()
        ]
        return Commands(tuple(commands)), frozenset(readable)


def result_record(command_id: str, result: CommandResult) -> Entry:
    """Returns the record with a member's result. Its key depends on the command and the partitions."""
    ranges = json.dumps(to_ranges(result.partitions), sort_keys=True).encode()
    digest = hashlib.sha256(ranges).hexdigest()[:16]
    return f"result/{command_id}/{digest}".encode(), Commands.encode_entry(result)


def _command_id(key: bytes) -> bytes:
    found = RESULT_KEY.match(key)
    return key if found is None else found[1]
