"""`KielProducer`, kiel's producer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Union

from allocator.compat.base_client import BaseClient
from allocator.core.aio import start_task
from allocator.core.settings import DEFAULT, names_arguments
from allocator.errors import ConfigError, DeliveryFailed, IllegalState, TopicNotFound
from allocator.producer import Partitions, Producer
from allocator.types import Acks, Compression, RecordMetadata

log = logging.getLogger(__name__)

COMPRESSIONS: Mapping[Any, Any] = {1: "gzip", 2: "snappy"}  # kiel.constants.GZIP and SNAPPY
ACKS: Mapping[int, Acks] = {-1: "all", 1: 1}
T = TypeVar("T")


@names_arguments
class KielProducer(BaseClient):
    """kiel's producer: `produce` serializes a message, and sends `batch_size` messages together.

    `produce` and `flush` return when the brokers have acknowledged the messages that they send, and raise
    DeliveryFailed if they do not within a minute, or refuse one. Messages of one partition keep their order, and from
    Kafka 0.11 on no retry writes one twice.

    serializer       converts a message to bytes, or to anything whose `str` is sent as UTF-8; None: JSON
    key_maker        returns the key of a message, of any type; None: no key
    partitioner      a function (key, partitions) that returns one of the partitions, in ascending order; None: a random
                     one that has a leader
    compression      None, "gzip" or "snappy", or kiel's numbers of them; "lz4" and "zstd" too
    required_acks    -1: all replicas in sync; 1: the leader
    ack_timeout      has no effect: requests are repeated until the brokers acknowledge them
    """

    def __init__(
        self,
        brokers: str | Sequence[str],
        serializer: Callable[[Any], Any] | None = None,
        key_maker: Callable[[Any], Any] | None = None,
        partitioner: Callable[[Any, Sequence[int]], int] | None = None,
        batch_size: int = 1,
        compression: Union[int, Compression, None] = None,
        required_acks: int = -1,
        ack_timeout: int = 500,
        *,
        security: Mapping[str, Any] | None = DEFAULT["security"],
    ) -> None:
        if required_acks not in ACKS:
            raise ConfigError(f"required_acks is {required_acks!r}; pass -1 or 1")
        label = brokers if isinstance(brokers, str) else ",".join(brokers)
        super().__init__(label, "producer", f"for {label}")
        self._producer = Producer(
            brokers=brokers,
            acks=ACKS[required_acks],
            compression=COMPRESSIONS.get(compression, compression),
            linger_s=0.0,
            security=security,
        )
        self.serializer = serializer or (lambda message: json.dumps(message, sort_keys=True))
        self.key_maker = key_maker or (lambda message: None)
        self.partitioner = partitioner or _at_random
        self.batch_size = batch_size
        self.compression = compression
        self.required_acks = required_acks
        self.ack_timeout = ack_timeout
        self._unsent: list[_Message] = []
        self._tails: dict[str, asyncio.Task[Any]] = {}
        """Topic -> the last task that places messages or hands them over. The next one of the topic waits for it."""

    @property
    def unsent_count(self) -> int:
        """Number of messages that wait until there are `batch_size` of them."""
        return len(self._unsent)

    def produce(self, topic: str, message: Any) -> asyncio.Future[None]:
        """Adds a message. Sends all unsent messages if there are `batch_size` of them.

        The message is added, as it is now, when the call returns: `flush` and `close` send it, whether or not the
        result is awaited. Logs an error, and sends nothing, for a topic that does not exist and that the brokers do not
        create, and a warning after `close`. The result raises DeliveryFailed as `flush` does, and the errors of the
        serializer, the key maker and the partitioner.
        """
        return self._result_of(partial(self._take, topic, message))

    def _take(self, topic: str, message: Any) -> asyncio.Future[None]:
        if self.closing:
            log.warning("%s: a message to topic %s is not sent: the producer is closed", self._label, topic)
            done = self._future()
            done.set_result(None)
            return done
        self._must_be_connected()
        self._must_be_here()
        key = self.key_maker(message)
        taken = _Message(topic, key, _rendered(key), _rendered(self.serializer(message)))
        partitions, placing = self._producer._known_partitions(topic), None
        if partitions is not None:
            taken.partition = self._choose(taken, partitions)
        else:
            placing = self._in_turn(topic, partial(self._locate, taken))
        self._unsent.append(taken)
        is_full = not self.batch_size or len(self._unsent) >= self.batch_size
        return self._task(self._delivered(self._hand_over_unsent() if is_full else [], placing))

    async def _locate(self, message: _Message) -> None:
        """Chooses the partition of a message once its topic is known. Drops it if that fails."""
        try:
            message.partition = self._choose(message, await self._producer._partitions(message.topic))
        except TopicNotFound:
            log.error(
                "%s: a message is not sent: unknown topic %s, and brokers do not create it", self._label, message.topic
            )
        finally:
            if message.partition is None and message in self._unsent:
                self._unsent.remove(message)

    def _choose(self, message: _Message, partitions: Partitions) -> int:
        choices = partitions.led if self.partitioner is _at_random else partitions.every
        partition = self.partitioner(message.key_object, choices)
        if partition not in choices:
            raise ConfigError(f"the partitioner chose {partition!r} for topic {message.topic}; it has {list(choices)}")
        return partition

    def flush(self) -> asyncio.Future[None]:
        """Sends the unsent messages, and returns when they are acknowledged.

        Raises the first error, after all of them were acknowledged or have failed.
        """
        return self._result_of(self._send_unsent)

    def _send_unsent(self) -> asyncio.Future[None]:
        if self._unsent:
            self._must_be_here()
        return self._task(self._delivered(self._hand_over_unsent()))

    def _hand_over_unsent(self) -> list[asyncio.Task[_HandedOver]]:
        """Starts to hand the unsent messages over to the producer, in the order of the calls for each topic."""
        messages, self._unsent = self._unsent, []
        by_topic: dict[str, list[_Message]] = defaultdict(list)
        for each in messages:
            by_topic[each.topic].append(each)
        return [self._in_turn(topic, partial(self._hand_over, some)) for topic, some in by_topic.items()]

    async def _hand_over(self, messages: Sequence[_Message]) -> _HandedOver:
        handed = _HandedOver([], [])
        for each in messages:
            if each.partition is None:
                continue  # it could not be placed, and its `produce` has told so
            try:
                handed.sent.append(await self._producer.send(each.topic, each.value, each.key, each.partition))
            except Exception as error:  # noqa: BLE001 - the other messages are sent
                handed.errors.append(error)
        return handed

    async def _delivered(
        self, tasks: Sequence[asyncio.Task[_HandedOver]], placing: asyncio.Task[None] | None = None
    ) -> None:
        """Returns when the messages of these tasks are acknowledged. Raises the first error. Its cancellation withdraws
        no message."""
        waits: list[asyncio.Task[Any]] = [*tasks, *([] if placing is None else [placing])]
        if waits:
            await asyncio.wait(waits)
        handed = [task.result() for task in tasks]
        sent = [future for each in handed for future in each.sent]
        results = await asyncio.gather(*sent, return_exceptions=True)
        if placing is not None:
            placing.result()
        errors = [error for each in handed for error in each.errors]
        errors += [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    def _in_turn(self, topic: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Starts a task that does the work after all earlier work for the topic."""
        before = self._tails.get(topic)

        async def run() -> T:
            if before is not None:
                await asyncio.wait([before])
            return await work()

        def forget(ended: asyncio.Task[Any]) -> None:
            if self._tails.get(topic) is ended:
                del self._tails[topic]

        task = self._tails[topic] = self._task(run())
        task.add_done_callback(forget)
        return task

    def _result_of(self, start: Callable[[], asyncio.Future[None]]) -> asyncio.Future[None]:
        """Returns the result of a call. Its errors are those of the result, as in a coroutine."""
        try:
            return start()
        except Exception as error:  # noqa: BLE001
            failed = self._future()
            failed.set_exception(error)
            return failed

    def _must_be_here(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop runs: the task runs once that of the producer does
            if asyncio.get_running_loop() is not self._loop:
                raise IllegalState(f"{self._label}: this producer was connected in another event loop; use it there")

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return start_task(work, loop=self._loop)

    def _future(self) -> asyncio.Future[None]:
        return (self._loop or asyncio.get_event_loop()).create_future()

    # -- start and close ------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        await self._producer.start()
        self._loop = asyncio.get_running_loop()

    async def _wind_down(self) -> None:
        try:
            if self._loop is not None:
                flushing = self.flush()
                # also what earlier calls have not handed over yet
                while under_way := [task for task in self._tails.values() if not task.done()]:
                    await asyncio.wait(under_way)
                await flushing
        finally:
            with contextlib.suppress(DeliveryFailed):  # `produce` or `flush` has raised it
                await self._producer.close()


class _Message:
    """A message that the producer has taken."""

    def __init__(self, topic: str, key_object: Any, key: bytes | None, value: bytes | None) -> None:
        self.topic = topic
        self.key_object = key_object
        """For the partitioner."""
        self.key = key
        self.value = value
        self.partition: int | None = None
        """None until it is chosen, and if it cannot be."""


class _HandedOver(NamedTuple):
    """Futures of the messages that `Producer` has, and the errors of those that it did not take."""

    sent: list[asyncio.Future[RecordMetadata]]
    errors: list[BaseException]


def _at_random(key: Any, partitions: Sequence[int]) -> int:
    return random.choice(partitions)


def _rendered(data: Any) -> bytes | None:
    """Returns bytes and None as they are, and anything else as the UTF-8 of its text, as kiel does."""
    return data if data is None or isinstance(data, bytes) else str(data).encode()
