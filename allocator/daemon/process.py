"""Runs the daemon as a process: signals and exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from allocator import Consumer, RebalanceListener
from allocator.assignors import resolve
from allocator.core.aio import TaskGroup, first_of
from allocator.core.client import check_security
from allocator.core.consumer import OffsetSink, check_sink, join_again_if
from allocator.core.settings import find
from allocator.core.telemetry import Measures
from allocator.core.text import limit_reached, shown
from allocator.daemon.config import Config, load
from allocator.daemon.daemon import Daemon
from allocator.daemon.logs import configure_logs
from allocator.daemon.notify import Notifier
from allocator.daemon.preflight import refuse_new_chroot
from allocator.daemon.settings_reader import SettingsReader
from allocator.daemon.stacks import dump_when_stuck
from allocator.errors import AllocatorError, AssignorError, ConfigError, HandlerFailed, MissingExtra
from allocator.handlers import Handler, Handling, load_handler
from allocator.operate import ChoiceWatcher
from allocator.protocols.zookeeper import ClusterChoice, EnsembleOptions, check_options, choice_path

log = logging.getLogger(__name__)

Beside = Callable[[Config, Sequence[Consumer], Daemon], AbstractAsyncContextManager[Any]]
"""Returns a context manager that is entered while the daemon runs. The list holds the current consumer."""

# Exit codes. After a second signal the code is 128 + its number, and nothing is drained.
CLEAN = 0  # a signal stopped the daemon; it drained, committed and left the group
# The cluster is unreachable or ended the membership, the last commit failed, or a call was cut off.
ERROR = 1
SETTINGS = 2  # the settings, the handler or an assignor are invalid; nothing was changed
HANDLER_FAILED = 3  # a record cannot be handled and no dead-letter topic takes it; it is not skipped


ERRORS = ("retry_on", "dead_letter_on", "skip_on", "stop_on")
"""The settings of `[handler]` that name error classes."""


def load_with_code(path: str) -> Config:
    """Loads a settings file like `load`, and the code and files that it names: all faults are in one ConfigError."""
    return load(path, also=_check_code)


def _check_code(config: Config, reader: SettingsReader) -> None:
    """Adds the faults of what the settings name. Settings that are wrong themselves are not looked up."""
    for key, look_up in _named(config):
        if key in reader.faults.keys:
            continue
        try:
            look_up()
        except (AssignorError, ConfigError, MissingExtra) as error:
            reader.fault([key], str(error))
    if not reader.faults.lines:
        try:
            config.handling.prepared(load_handler(config.handler.target, config.handler.mode), config.group.name)
        except ConfigError as error:
            reader.faults.add("handler", str(error))


def _named(config: Config) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields each setting that names code or files, with a function that raises if it cannot be found."""
    handler, group = config.handler, config.group
    yield "handler.target", partial(load_handler, handler.target, handler.mode)
    if handler.sink is not None:
        yield "handler.sink", partial(_sink, handler.sink)
    for name in ERRORS:
        for each in getattr(handler, name) or ():
            alone = {**config.handling_values, **dict.fromkeys(ERRORS, ()), name: (each,)}
            yield f"handler.{name}", partial(Handling.of, alone, "handler.")
    if group.group_protocol == "classic":  # with the protocol `consumer`, the assignors are on the broker
        for assignor in group.assignor or ():
            yield "group.assignor", partial(resolve, assignor)
    yield "kafka.security_protocol", lambda: check_security(config.kafka.security(), load=True)
    yield "zookeeper.hosts", lambda: check_options(config.zookeeper.options(), load=True)


def _sink(target: str) -> OffsetSink:
    """Returns the sink that the setting names. Raises ConfigError if it is none."""
    return check_sink(find(target, f"sink {target!r}", here=True))


def check(config: Config) -> Handler:
    """Loads the handler, sink, assignors, TLS files and token provider, without connecting. Returns the handler.

    Raises ConfigError, AssignorError or MissingExtra.
    """
    handler = load_handler(config.handler.target, config.handler.mode)
    check_security(config.kafka.security(), load=True)
    check_options(config.zookeeper.options(), load=True)
    handler = config.handling.prepared(handler, config.group.name)
    if config.handler.sink is not None:
        _sink(config.handler.sink)
    if config.group.group_protocol == "classic":  # with the protocol `consumer`, the assignors are on the broker
        for assignor in config.group.assignor or ():
            resolve(assignor)
    return handler


def run(config: Config, beside: Beside | None = None, *, create: bool = False) -> int:
    """Runs until a signal or an error, in a new event loop. Returns the exit code.

    `beside` is entered before the daemon starts and left after it has ended. `create` allows it to create a missing
    chroot.
    """
    configure_logs(config.log.level, config.log.format, quote_records=not config.records.masks)
    Measures.configure_spans(quote_records=not config.records.masks)
    try:
        handler = check(config)
    except (AssignorError, ConfigError, MissingExtra) as error:
        log.error("%s", error)
        return SETTINGS
    consumers: list[Consumer] = []
    notifier = Notifier()
    daemon = _daemon(config, handler, consumers, notifier)
    first = None
    if isinstance(config.membership, EnsembleOptions) and not create:
        first = partial(refuse_new_chroot, config)
    beside_it = beside and partial(beside, config, consumers, daemon)
    try:
        return asyncio.run(_until_signal(daemon, notifier, beside_it, first))
    except (SystemExit, KeyboardInterrupt) as raised:  # raised by a task of the handler; asyncio then ends the loop
        log.error("user code ended the event loop: %s; only the committed records are done", shown(raised))
        return ERROR


def _daemon(config: Config, handler: Handler, consumers: list[Consumer], notifier: Notifier) -> Daemon:
    options = config.consumer_options()
    if config.handler.sink is not None:
        options["sink"] = _sink(config.handler.sink)
    place, watcher = config.membership, None
    if isinstance(place, EnsembleOptions) and place.name == "zookeeper":
        watcher = ChoiceWatcher(place.ensemble(), choice_path(place.root, config.group.name))

    def make(choice: ClusterChoice, listener: RebalanceListener) -> Consumer:
        brokers = choice.brokers or options["brokers"]
        consumer = Consumer(*(config.group.topics or ()), **{**options, "brokers": brokers}, listener=listener)
        # the next consumer has the same name: operator commands name a member by its client id
        options["client_id"] = consumer.client_id
        if watcher is not None:
            join_again_if(consumer, watcher.still(choice))
        consumers[:] = [consumer]  # the previous consumer, on another cluster, is closed
        return consumer

    return Daemon(
        make,
        replace(handler, catches_interrupts=True),
        config.handling,
        watcher,
        connect_timeout_s=config.group.connect_timeout_s,
        notifier=notifier,
        restart=not config.group.leave_on_stop,
    )


async def _until_signal(
    daemon: Daemon,
    notifier: Notifier,
    beside: Callable[[], AbstractAsyncContextManager[Any]] | None,
    first: Callable[[], Coroutine[Any, Any, None]] | None,
) -> int:
    """Runs `first`, then the daemon, until a signal or an error. Returns the exit code."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    code = CLEAN

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        if stopping.is_set():
            if number == signal.SIGHUP:
                # the kernel and the shell each send one when a terminal closes, and systemd one after SIGTERM
                log.info("SIGHUP again: still draining")
                return
            log.warning(
                "second signal, %s: stopping at once; records that are handled but not committed are handled again",
                name,
            )
            _exit_now(128 + number)
        log.info("%s: draining; a second signal stops at once", name)
        notifier.notify("STOPPING=1")
        daemon.stop()
        stopping.set()

    async def main() -> None:
        if first is not None:
            await first_of(first(), stopping.wait())
        await daemon.run()  # returns at once after a signal

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with (beside or AsyncExitStack)():
            await TaskGroup().run(main(), watchdog=notifier.keep_alive(), stacks=dump_when_stuck())
    except HandlerFailed as error:
        log.error("%s", error, extra={"topic": error.topic, "partition": error.partition, "offset": error.offset})
        code = HANDLER_FAILED
    except AllocatorError as error:
        log.error("%s", error)
        code = SETTINGS if isinstance(error, (AssignorError, ConfigError)) else ERROR
    except Exception as error:
        limit = limit_reached(error)
        log.error("%s", limit or "stopped by an unexpected error", exc_info=limit is None)
        code = ERROR
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # else one that comes now would replace the exit code
    if daemon.stuck:
        # asyncio and the interpreter would wait for this call. Do not close the session: its partition must not move
        # before the call ends with the process
        log.error("a handler is still running and is cut off: %s", ", ".join(f"{t}:{p}" for t, p in daemon.stuck))
        _exit_now(code)
    return code


def _exit_now(code: int) -> None:
    logging.shutdown()
    os._exit(code)
