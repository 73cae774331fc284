"""Implements `allocator run --check --connect`: verifies the settings against the live servers.

The checks change nothing: they join no group, create no znode and commit nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Optional

from kafka.protocol.consumer import HeartbeatRequest
from tornado.netutil import bind_sockets

from allocator.core.aio import within
from allocator.core.client import Coordinator, ErrorCode, KafkaClient, for_code
from allocator.core.offsets import GroupOffsets
from allocator.core.settings import address_text, parse_address, topic_pattern
from allocator.core.text import plain, some_of
from allocator.daemon.config import Config
from allocator.errors import AllocatorError, ConfigError, TopicAuthorizationFailed
from allocator.handlers import RetryPlan
from allocator.operate import GroupState, ShellCommand, describe
from allocator.protocols import commands_topic
from allocator.protocols.zookeeper import EnsembleOptions, NoChroot, ZooKeeperClient
from allocator.types import TopicPartition

REACH_S = 3.0  # limit of one TCP connection in seconds; higher: waits longer for a host that drops packets
SETTLE_S = 5.0  # seconds for topics to appear; higher: reports a missing topic later
RETRIES = " (retries)"  # what a retry topic is for
COMMANDS = " (operator commands)"


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok` is None for a warning. `remedy`: what to do unless `ok` is True."""

    what: str
    ok: Optional[bool]
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        word = {True: "ok", None: "warning", False: "FAILED"}[self.ok]
        stop = "" if self.found.endswith((".", "?")) else "."
        remedy = f"{stop} {self.remedy[0].upper()}{self.remedy[1:]}" if self.remedy and not self.ok else ""
        return plain(f"{word:<8} {self.what}: {self.found}{remedy}")


def try_servers(config: Config, show: Callable[[str], None] | None = None) -> list[Check]:
    """Runs every check, except those that depend on a failed one. Calls `show` with a line after each."""
    # the checks report unreachable servers themselves, in one line each
    for chatty in ("kafka", "kazoo"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    found: list[Check] = []

    def add(check: Check) -> None:
        found.append(check)
        if show is not None:
            show(str(check))

    async def preflight() -> None:
        add(_page(config))
        if isinstance(config.membership, EnsembleOptions):
            await _ensemble(config, add)
        await _cluster(config, add)

    asyncio.run(preflight())
    return found


async def refuse_new_chroot(config: Config) -> None:
    """Raises ConfigError if the chroot does not exist. Changes nothing."""
    if "/" not in (config.zookeeper.hosts or ""):
        return
    try:
        async with _session(config):
            pass
    except NoChroot as error:
        raise ConfigError(f"{error} Correct the chroot in zookeeper.hosts, or start once with --create") from error


@contextlib.asynccontextmanager
async def _session(config: Config) -> AsyncIterator[ZooKeeperClient]:
    assert isinstance(config.membership, EnsembleOptions)
    zk = config.membership.ensemble()
    await zk.connect(config.group.connect_timeout_s, make_chroot=False)
    try:
        yield zk
    finally:
        await zk.close()


def _page(config: Config) -> Check:
    web = config.web
    if web.port is None:
        return Check("status page", True, "off")
    where = address_text(web.host, web.port)
    try:
        for probe in bind_sockets(web.port, web.host):
            probe.close()
    except OSError as error:
        return Check(
            "status page", False, f"{where}: {error.strerror or error}", "set web.port or web.host to a free one"
        )
    return Check("status page", True, where)


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


async def _ensemble(config: Config, add: Callable[[Check], None]) -> None:
    hosts = config.zookeeper.hosts or ""
    await _reach("ZooKeeper server", hosts.partition("/")[0].split(","), 2181, "zookeeper.hosts", add)
    what = "ZooKeeper session"
    try:
        async with _session(config) as zk:
            add(Check(what, True, hosts))
            add(_members(config, await describe(zk, config.group.name, config.zookeeper.root)))
    except NoChroot as error:
        add(Check(what, False, str(error), "correct the chroot in zookeeper.hosts, or start once with --create"))
    except AllocatorError as error:
        add(Check(what, False, str(error), "check zookeeper.hosts, tls and the credentials in [zookeeper]"))


def _members(config: Config, state: GroupState | None) -> Check:
    """Checks whether the other members of the group share an allocator function with this one."""
    what = f"group {config.group.name}"
    if config.group.membership != "zookeeper":
        return Check(what, True, f"members of the membership {config.group.membership!r} are not checked")
    if state is None or not state.members:
        return Check(what, True, "no other members; this one owns all partitions")
    names = some_of([*map(state.name_of, state.members)])
    found = f"{len(state.members)} other members: {names}"
    offered = set(config.group.assignor or ("naive",))
    common = offered.intersection(*(info.strategies for info in state.members.values() if info.strategies))
    if not common and all(info.strategies for info in state.members.values()):
        others = some_of(sorted({name for info in state.members.values() for name in info.strategies}))
        remedy = f"set group.assignor to an assignor that all members have: they offer {others}"
        return Check(what, False, f"{found}; none of {sorted(offered)} is offered by all of them", remedy)
    if state.problems:
        return Check(
            what, None, f"{found}; {state.problems[0]}", str(ShellCommand.of("allocator doctor", config.group.name))
        )
    return Check(what, True, found)


# -- Kafka ---------------------------------------------------------------------------------------------------------


async def _cluster(config: Config, add: Callable[[Check], None]) -> None:
    await _reach("Kafka broker", config.kafka.brokers, 9092, "kafka.brokers", add)
    client = KafkaClient(config.kafka.brokers, security=config.kafka.security())
    try:
        await client.connect(config.group.connect_timeout_s)
        client.follow_all()
        await _settled(config, client)
        refused = await _refusals(config, client)
    except AllocatorError as error:
        await client.close()
        add(Check("Kafka cluster", False, str(error), "check kafka.brokers, security_protocol and the credentials"))
        return
    try:
        version = ".".join(map(str, client.broker_version))
        add(Check("Kafka cluster", True, f"{len(client.brokers)} brokers, version {version} or newer"))
        for check in _topics(config, client, refused):
            add(check)
        what = "group coordinator"
        try:
            committed = await GroupOffsets(client, config.group.name).fetch(None)
            await _check_group(client, config.group.name)
        except AllocatorError as error:
            add(Check(what, False, str(error), "allow this user to describe and read the group, or correct group.name"))
        else:
            begins = f"{len(committed)} committed offsets" if committed else "nothing committed"
            add(Check(what, True, f"{begins}; auto_offset_reset = {config.consume.auto_offset_reset!r}"))
    finally:
        await client.close()


async def _check_group(client: KafkaClient, group: str) -> None:
    """Raises BrokerError if this user may not join the group, or commit its offsets."""
    if client.api_version(HeartbeatRequest) is None:
        return  # Kafka 0.8
    # the coordinator checks the right first, and then refuses the heartbeat of a member that it does not know
    heartbeat = HeartbeatRequest(group_id=group, generation_id=-1, member_id="", group_instance_id=None, max_version=4)
    coordinator = Coordinator(client, group, client.retry_backoff_s)
    response = await coordinator.send(heartbeat, time.monotonic() + client.request_timeout_s)
    if response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        raise for_code(response.error_code, f"group {group!r}")


async def _refusals(config: Config, client: KafkaClient) -> dict[str, TopicAuthorizationFailed]:
    """Returns the right that this user lacks on each topic."""
    notes, pattern = _notes(config), config.group.pattern
    matches = [] if pattern is None else filter(topic_pattern(pattern).matches, client.topics())
    commands = _commands(config)
    reads = {*(config.group.topics or ()), *matches, *notes, *commands} - {config.handler.dead_letter_topic}
    return {**await client.refusals({*notes, *commands}, "write"), **await client.refusals(reads, "read")}


def _commands(config: Config) -> dict[str, str]:
    """Returns the topic from which a member reads operator commands, and to which it writes their results."""
    topic = commands_topic(config.group.name) if config.group.membership == "kafka" else None
    return {} if topic is None else {topic: COMMANDS}


def _notes(config: Config) -> dict[str, str]:
    """Returns the topics that the daemon writes, with what each is for."""
    retries = RetryPlan.of(config.group.name, config.handler.retry_topics or ()).topics
    notes = dict.fromkeys(retries, RETRIES)
    if config.handler.dead_letter_topic is not None:
        notes[config.handler.dead_letter_topic] = " (dead letters)"
    return notes


async def _settled(config: Config, client: KafkaClient) -> None:
    """Waits for topics that were just created, and for brokers that just started."""
    deadline = time.monotonic() + SETTLE_S
    await client.refresh()
    while not all(check.ok for check in _topics(config, client, {})) and time.monotonic() < deadline:
        await asyncio.sleep(client.retry_backoff_s)
        await client.refresh()


def _topics(config: Config, client: KafkaClient, refused: Mapping[str, AllocatorError]) -> Iterable[Check]:
    existing = client.topics()
    if config.group.pattern is not None:
        matches = sorted(filter(topic_pattern(config.group.pattern).matches, existing))
        what = f"topics like {config.group.pattern}"
        if matches:
            yield Check(what, True, f"{len(matches)}: {some_of(matches)}")
        else:
            yield Check(what, None, "no topic of the cluster matches", "correct group.pattern, or create the topics")
    notes, commands = _notes(config), _commands(config)
    for topic in dict.fromkeys((*(config.group.topics or ()), *notes, *refused)):
        what = f"topic {topic}" + {**commands, **notes}.get(topic, "")
        numbers = client.partitions(topic)
        if topic in refused:
            # a member starts without the right to operator commands, and ignores them
            yield Check(what, None if topic in commands else False, *str(refused[topic]).split("; ", 1))
            continue
        if numbers is None and notes.get(topic) == RETRIES and config.handler.create_retry_topics:
            yield Check(what, True, "created at the start")
            continue
        if numbers is None:
            near = difflib.get_close_matches(topic, existing, 3)
            hint = f"did you mean {some_of(near)}? Otherwise create it" if near else ""
            hint = hint or "create it, or allow this user to describe it"
            yield Check(what, False, "the cluster has no such topic, or does not show it to this user", hint)
            continue
        headless = [n for n in numbers if client.leader(TopicPartition(topic, n)) is None]
        if headless:
            remedy = "start the brokers that hold its replicas"
            yield Check(what, False, f"{len(headless)} of {len(numbers)} partitions have no leader", remedy)
        else:
            yield Check(what, True, f"{len(numbers)} partitions")


# ----------------------------------------------------------------------------------------------------------------


async def _reach(what: str, addresses: Iterable[str], port: int, setting: str, add: Callable[[Check], None]) -> None:
    """Checks each address. A refused connection is a warning, because the daemon needs only one address."""
    listed = [address for address in addresses if address]
    for address, why in zip(listed, await asyncio.gather(*(_refused(address, port) for address in listed))):
        if why is None:
            add(Check(f"{what} {address}", True, "accepts connections"))
        else:
            add(Check(f"{what} {address}", None, why, f"start it, or correct the address in {setting}"))


async def _refused(address: str, default_port: int) -> str | None:
    """Returns why no connection is possible; None if one is."""
    try:
        _, writer = await within(asyncio.open_connection(*parse_address(address, default_port)), REACH_S)
    except asyncio.TimeoutError:
        return f"no connection within {REACH_S:g} s"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    writer.close()
    return None
