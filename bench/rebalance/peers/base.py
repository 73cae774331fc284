"""Runs the members of one process, as threads or as tasks of one event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from ..journal import Journal
from ..settings import Settings

__all__ = ["Members", "Tasks", "Threads"]


class Members(ABC):
    """The members in this process. Times are from CLOCK_MONOTONIC, in seconds."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.journals: dict[str, Journal] = {}

    @abstractmethod
    def start(self, name: str) -> float:
        """Starts a member. Returns the time of the start."""

    @abstractmethod
    def leave(self, name: str) -> float:
        """Makes a member leave. Returns the time at which it started to leave."""

    @abstractmethod
    def close(self) -> None:
        """Makes all members leave, and waits until they have left."""


class Threads(Members):
    """Runs each member in its own thread."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._threads: dict[str, threading.Thread] = {}
        self._stops: dict[str, threading.Event] = {}
        self._leaving: dict[str, tuple[threading.Event, list[float]]] = {}

    def start(self, name: str) -> float:
        journal = self.journals[name] = Journal()
        self._stops[name] = threading.Event()
        self._leaving[name] = (threading.Event(), [])
        self._threads[name] = threading.Thread(target=self._guarded, args=(name, journal), name=name, daemon=True)
        began = time.monotonic()
        self._threads[name].start()
        return began

    def leave(self, name: str) -> float:
        self._stops[name].set()
        begun, when = self._leaving[name]
        begun.wait(60)
        return when[0]

    def close(self) -> None:
        for stop in self._stops.values():
            stop.set()
        for thread in self._threads.values():
            thread.join(60)

    def leaves(self, name: str) -> None:
        """Stores the time at which a member leaves. `member` calls this just before it closes its consumer."""
        begun, when = self._leaving[name]
        when.append(time.monotonic())
        begun.set()

    def _guarded(self, name: str, journal: Journal) -> None:
        try:
            self.member(name, journal, self._stops[name])
        except Exception:  # noqa: BLE001 - the parent reports it
            journal.error = traceback.format_exc()

    @abstractmethod
    def member(self, name: str, journal: Journal, stop: threading.Event) -> None:
        """Runs one member until `stop` is set."""


class Tasks(Members):
    """Runs each member in its own task, all in one event loop on a separate thread."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        self._stops: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str) -> float:
        return self._do(self._start(name))

    def leave(self, name: str) -> float:
        return self._do(self._leave(name))

    def close(self) -> None:
        self._do(self._close(), 60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, coroutine: Coroutine[Any, Any, float], timeout_s: float = 30) -> float:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    async def _start(self, name: str) -> float:
        journal = self.journals[name] = Journal()
        self._stops[name] = asyncio.Event()
        began = time.monotonic()
        self._tasks[name] = asyncio.ensure_future(self._guarded(name, journal))
        return began

    async def _leave(self, name: str) -> float:
        self._stops[name].set()
        return time.monotonic()

    async def _close(self) -> float:
        for stop in self._stops.values():
            stop.set()
        await asyncio.gather(*self._tasks.values())
        return time.monotonic()

    async def _guarded(self, name: str, journal: Journal) -> None:
        try:
            await self.member(name, journal, self._stops[name])
        except Exception:  # noqa: BLE001 - the parent reports it
            journal.error = traceback.format_exc()

    @abstractmethod
    async def member(self, name: str, journal: Journal, stop: asyncio.Event) -> None:
        """Runs one member until `stop` is set."""
