"""Tasks with an owner, timeouts, pauses between attempts, and clocks."""

from __future__ import annotations

from allocator.core.aio.backoff import Backoff
from allocator.core.aio.clock import boot_clock, milliseconds, time_text, wall_ms
from allocator.core.aio.reminder import Reminder
from allocator.core.aio.tasks import (
    BackgroundTasks,
    ClosesOnce,
    TaskGroup,
    call_user,
    ends,
    first_of,
    settle,
    start_task,
    wait_for_event,
    warn_unclosed,
    within,
)
