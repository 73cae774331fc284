"""The partitions that a member owns, and how far each is: position, holds, done and committed offset.

The membership changes the owned partitions, the consumer seeks and pauses, and `fetch` finds offsets and reads by this
state. Nothing here has a lock, does I/O or starts a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocator import lazy_names
from allocator.core.subscription.commit_text import done_of, stamped
from allocator.core.subscription.done import DoneSet
from allocator.core.subscription.listener import RebalanceEvent, RebalanceListener, check_listener
from allocator.core.subscription.loss import Committed, RecordsLost
from allocator.core.subscription.partition import TopicPartitionState
from allocator.core.subscription.progress import Call, Hold, Progress
from allocator.core.subscription.state import LogTruncation, SubscriptionState
from allocator.core.subscription.tenures import Phase, Tenure, Tenures

if TYPE_CHECKING:
    from allocator.core.kafka_errors import NoPosition


if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = lazy_names(__name__, {"kafka_errors": "NoPosition"})
