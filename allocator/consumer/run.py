"""The process around the daemon: signals, logs, exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Optional, Union

from allocator.assign import resolve
from allocator.consumer import logs
from allocator.consumer.config import Config
from allocator.consumer.consumer import Consumer
from allocator.consumer.daemon import Daemon, DaemonSettings
from allocator.consumer.dead_letter import DeadLetterTopic
from allocator.consumer.following import FollowingDaemon
from allocator.consumer.handlers import Handler, load_handler, traced
from allocator.consumer.joining import ON_ZOOKEEPER
from allocator.consumer.lanes import Retries
from allocator.consumer.notify import Notifier
from allocator.consumer.preflight import refuse_new_chroot
from allocator.consumer.switching import ClusterChoice, Watcher, path_of
from allocator.errors import AllocatorError, AssignorError, ConfigError, HandlerFailed
from allocator.subscription.listener import RebalanceListener
from allocator.tasks import Scope, first_of
from allocator.wire.zookeeper import ZooKeeper

__all__ = ["CLEAN", "ERROR", "HANDLER_FAILED", "SETTINGS", "Beside", "check", "run"]

log = logging.getLogger(__name__)

Runner = Union[Daemon, FollowingDaemon]
Beside = Callable[[Config, Sequence[Consumer], Runner], AbstractAsyncContextManager[Any]]
"""What runs as long as the daemon; its consumer is in the list once it is made."""

CLEAN = 0  # stopped by a signal: drained, committed, left
ERROR = 1  # the cluster cannot be reached, or refused to go on, or the last commit failed
SETTINGS = 2  # settings, the handler or an allocator function cannot be used; nothing was touched
HANDLER_FAILED = 3  # a record cannot be handled and there is no dead-letter topic; it was not skipped
# a second signal: 128 + its number, nothing drained


def check(config: Config) -> Handler:
    """Everything that can be found out without connecting. Raises ConfigError or AssignorError."""
    handler = load_handler(config.handler.target, config.handler.mode)
    if config.group.group_protocol == "classic":  # else they are names of the broker's
        for assignor in config.group.assignor or ():
            resolve(assignor)
    return handler


def run(config: Config, beside: Beside | None = None, *, create: bool = False) -> int:
    """Run until a signal or a failure; returns the exit code. The loop is ours: call it from no coroutine.

    `beside` is entered before the daemon starts and left after it has ended. `create`: a chroot that does not exist is
    created instead of refused.
    """
    logs.configure(config.log.level, config.log.format)
    try:
        handler = check(config)
    except (AssignorError, ConfigError) as error:
        log.error("%s", error)
        return SETTINGS
    consumers: list[Consumer] = []
    notifier = Notifier()
    daemon = _runner(config, handler, consumers, notifier)
    first = None
    if config.group.membership in ON_ZOOKEEPER and not create:
        first = partial(refuse_new_chroot, config)
    beside_it = beside and partial(beside, config, consumers, daemon)
    code = asyncio.run(_until_signal(daemon, notifier, beside=beside_it, first=first))
    if daemon.stuck:
        # the interpreter waits for threads at its end, and this one was waited for long enough
        log.error("a handler is still running and is cut off: %s", ", ".join(f"{t}:{p}" for t, p in daemon.stuck))
        _exit_now(code)
    return code


def _runner(config: Config, handler: Handler, consumers: list[Consumer], notifier: Notifier) -> Runner:
    if config.group.membership != "zookeeper" or config.zookeeper.hosts is None:
        return _daemon(config, handler, consumers, notifier)
    settings = config.zookeeper
    zk = ZooKeeper(config.zookeeper.hosts, session_timeout_s=settings.session_timeout_s, options=settings.options())
    watcher = Watcher(zk, path_of(settings.root, config.group.name))

    def make(choice: ClusterChoice) -> Daemon:
        return _daemon(config, handler, consumers, notifier, choice.brokers, watcher.still(choice))

    return FollowingDaemon(
        watcher,
        make,
        connect_timeout_s=config.group.connect_timeout_s,
        notifier=notifier,
    )


def _daemon(
    config: Config,
    handler: Handler,
    consumers: list[Consumer],
    notifier: Notifier,
    brokers: Optional[str] = None,
    admitted: Optional[Callable[[ZooKeeper], Awaitable[bool]]] = None,
) -> Daemon:
    settings = config.handler
    options = config.consumer_options()
    if brokers is not None:
        options["brokers"] = brokers
    dead_letters = None
    if settings.dead_letter_topic is not None:
        dead_letters = DeadLetterTopic(
            settings.dead_letter_topic,
            options["brokers"],
            config.group.name,
            security=config.kafka.security(),
        )

    def consumer(listener: RebalanceListener) -> Consumer:
        # the one before, on another cluster, has left
        consumers[:] = [Consumer(*(config.group.topics or ()), **options, listener=listener)]
        if admitted is not None:
            consumers[-1]._engine.join_again_if(admitted)
        return consumers[-1]

    return Daemon(
        consumer,
        traced(handler, config.group.name),
        DaemonSettings(
            concurrency=settings.concurrency,
            queue_batches=settings.queue_batches,
            retries=Retries(settings.retries, settings.retry_backoff_s, settings.retry_backoff_max_s),
            drain_timeout_s=settings.drain_timeout_s,
            commit_interval_s=config.commit.interval_s,
        ),
        dead_letters=dead_letters,
        notifier=notifier,
    )


async def _until_signal(
    daemon: Runner,
    notifier: Notifier,
    exit_now: Callable[[int], Any] | None = None,
    beside: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    first: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> int:
    """`first` runs before the daemon; a signal ends it."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    received: list[int] = []

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        received.append(number)
        if len(received) > 1:
            log.warning("second signal, %s: stopping at once; what was handled and not committed comes again", name)
            (exit_now or _exit_now)(128 + number)
        else:
            log.info("%s: draining; a second signal stops at once", name)
            notifier.tell("STOPPING=1")
            daemon.stop()
            stopping.set()

    async def main() -> None:
        if first is not None:
            await first_of(first(), stopping.wait())
        await daemon.run()  # returns at once if it was stopped already

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # of nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with (beside or AsyncExitStack)():
            await Scope().run(main(), watchdog=notifier.keep_alive())
    except HandlerFailed as error:
        log.error("%s", error, extra={"topic": error.topic, "partition": error.partition, "offset": error.offset})
        return HANDLER_FAILED
    except (AssignorError, ConfigError) as error:
        log.error("%s", error)
        return SETTINGS
    except AllocatorError as error:
        log.error("%s", error)
        return ERROR
    except Exception:
        log.exception("stopped by an error that nobody foresaw")
        return ERROR
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return CLEAN


def _exit_now(code: int) -> None:
    logging.shutdown()
    os._exit(code)
