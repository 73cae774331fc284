"""The part that all assignment listeners share: they call the user, and release partitions that nobody holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from allocator.core.aio.tasks import call_user, is_in_callback, within
from allocator.core.errors import IllegalState
from allocator.core.membership.membership import AssignmentListener
from allocator.core.subscription.listener import RebalanceEvent, callback_of, check_listener
from allocator.core.subscription.tenures import Phase, Tenure, Tenures
from allocator.core.types import Partitions, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Tenure)

PATIENCE_S = 10.0  # interval of the warnings that holds delay a rebalance
# Seconds that revoked partitions wait for each other. Higher: fewer commits and claims; lower: partitions move sooner.
TOGETHER_S = 0.5


class HoldingListener(AssignmentListener):
    """An `AssignmentListener` for tenures that may be held.

    Guarantee: a hold delays the release of its own partition, and of no other. An exception of the user's listener is
    logged and delays nothing, also a CancelledError that the listener raises itself.
    """

    def __init__(self, tenures: Tenures[Any], listener: Any) -> None:
        check_listener(listener)
        self.tenures = tenures
        self.listener = listener
        self._error: BaseException | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        tenures.on_end = lambda ended: self.wake()

    def suspended(self, why: str) -> None:
        """Does nothing by itself: `Membership.may_act` returns False meanwhile."""

    def failed(self, error: BaseException) -> None:
        self._error = error
        self.wake()

    def take_error(self) -> BaseException | None:
        """Returns an error that the user has not received yet, if any."""
        error, self._error = self._error, None
        if error is not None:
            self.wake()
        return error

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true that depends on the tenures, on their holds, or on `take_error`. Raises
        IllegalState in a callback that would have to return first."""
        while not condition():
            if is_in_callback():
                raise IllegalState(
                    "a callback cannot wait for the group, because the group waits for the callback: start a task for "
                    "this work (asyncio.create_task), and return"
                )
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)

    def wake(self) -> None:
        """Called when a condition of `until` may have become true."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def notify(self, event: RebalanceEvent, partitions: Partitions) -> None:
        """Calls the listener's method for `event`, and awaits its result if it is awaitable. Logs its exception."""
        callback = callback_of(self.listener, event)
        if callback is not None and partitions:
            await call_listener(callback, partitions, f"{len(partitions)} partitions")

    def _tenures(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        return [self.tenures.assignment[partition] for partition in partitions]

    async def freed(self, tenures: Sequence[T]) -> list[T]:
        """Waits until at least one of these draining tenures is held by nobody, and returns all such tenures."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self.until(lambda: all(map(_is_free, tenures))), TOGETHER_S)
        while True:
            try:
                await within(self.until(lambda: any(map(_is_free, tenures))), PATIENCE_S)
                break
            except asyncio.TimeoutError:
                log.warning("%d revoked partitions wait until nobody holds them", len(tenures))
        return list(filter(_is_free, tenures))


def draining(tenures: Iterable[Tenure]) -> Partitions:
    """Returns the partitions that still drain. The user may have assigned others again in the meantime."""
    return frozenset(tenure.partition for tenure in tenures if tenure.phase is Phase.DRAINING)


async def call_listener(callback: Callable[[Any], Any], argument: Any, about: str) -> None:
    """Calls a method of a user's listener. Logs its exception."""
    try:
        await call_user(callback, argument)
    except Exception:
        log.exception("%s of the listener failed for %s", getattr(callback, "__qualname__", callback), about)


def _is_free(tenure: Tenure) -> bool:
    return tenure.phase is Phase.ENDED or not tenure.is_held
