"""The names of members in tables, the page, logs and errors.

allocator-web1-4242-3f9a#12     the default client id has the host and the process id; 12 is the member's sequence
                                number in ZooKeeper, a new one for each session of a process
billing@web1:4242#12            a client id that the user chose, which many members may share
billing@10.0.0.7#6f1c2d3e       a member of Kafka's own protocol: the first digits of its UUID
"""

from __future__ import annotations

import re
from typing import Optional

from allocator.protocols.zookeeper.znodes.documents import MemberInfo, sequence

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
ID_DIGITS = 8  # length of the short form of an id without a sequence number


def member_name(member: str, info: Optional[MemberInfo], *, session: bool = True) -> str:
    """Returns the name of the member with the id `member`; falls back to the short id if `info` is None.

    If `session` is False, the name has no session number: "billing@web1:4242".
    """
    if info is not None and not session:
        return _with_host(info)
    number, uuid = sequence(member), UUID.search(member)
    short = number if number is not None else (member if uuid is None else uuid.group())[:ID_DIGITS]
    return f"#{short}" if info is None else f"{_with_host(info)}#{short}"


def _with_host(info: MemberInfo) -> str:
    """Returns the client id, followed by host and process id unless it contains them."""
    name, host, pid = info.name, info.host, info.pid
    if host in name and (pid is None or re.search(rf"(?<![0-9]){pid}(?![0-9])", name)):
        return name
    return f"{name}@{host}" if pid is None else f"{name}@{host}:{pid}"
