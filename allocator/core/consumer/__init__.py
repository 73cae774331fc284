"""The consumer: a member of a group that reads the partitions it owns and commits their offsets.

It combines a membership, the fetcher and the offsets. `ConsumerBase` is `Consumer` without the calls of a handler.
"""

from __future__ import annotations

from allocator.core.consumer.commanded import CommandedConsumer, CommandExecutor
from allocator.core.consumer.commit_call import Chosen
from allocator.core.consumer.consumer import ConsumerBase, client_of, join_again_if, until_lease
from allocator.core.consumer.group_member import GroupMember
from allocator.core.consumer.membership_config import (
    Fault,
    MemberParts,
    MembershipConfig,
    MembershipOptions,
    assignors_of,
    membership_from,
)
from allocator.core.consumer.record_processor import RecordCommands
from allocator.core.consumer.sink import OffsetSink, SinkClaim, SinkOffset, check_sink
