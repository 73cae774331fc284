"""`KielProducer`, kiel's producer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from allocator.compat.base_client import BaseClient
from allocator.core.settings import DEFAULT, names_arguments
from allocator.errors import AllocatorError, ConfigError, DeliveryFailed, TopicNotFound
from allocator.producer import Producer
from allocator.types import Acks, Compression, RecordMetadata

log = logging.getLogger(__name__)

COMPRESSIONS: Mapping[Any, Any] = {1: "gzip", 2: "snappy"}  # kiel.constants.GZIP and SNAPPY
ACKS: Mapping[int, Acks] = {-1: "all", 1: 1}


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
        self._unsent: list[tuple[str, int, bytes | None, bytes | None]] = []  # topic, partition, key, value

    @property
    def unsent_count(self) -> int:
        """Number of messages that wait until there are `batch_size` of them."""
        return len(self._unsent)

    def produce(self, topic: str, message: Any) -> asyncio.Future[None]:
        """Adds a message. Sends all unsent messages if there are `batch_size` of them.

        Logs an error, and sends nothing, for a topic that does not exist and that the brokers do not create, and a
        warning after `close`. Raises DeliveryFailed as `flush` does, and the errors of the serializer, the key maker
        and the partitioner.
        """
        return asyncio.ensure_future(self._produce(topic, message))

    async def _produce(self, topic: str, message: Any) -> None:
        if self.closing:
            log.warning("%s: a message to topic %s is not sent: the producer is closed", self._label, topic)
            return
        self._must_be_connected()
        try:
            partitions = await self._producer._partitions(topic)
        except TopicNotFound:
            log.error("%s: a message is not sent: unknown topic %s, and brokers do not create it", self._label, topic)
            return
        key = self.key_maker(message)
        choices = partitions.led if self.partitioner is _at_random else partitions.every
        partition = self.partitioner(key, choices)
        if partition not in choices:
            raise ConfigError(f"the partitioner chose {partition!r} for topic {topic}; it has {list(choices)}")
        self._unsent.append((topic, partition, _rendered(key), _rendered(self.serializer(message))))
        if not self.batch_size or len(self._unsent) >= self.batch_size:
            await self._flush()

    def flush(self) -> asyncio.Future[None]:
        """Sends the unsent messages, and returns when they are acknowledged.

        Raises the first error, after all of them were acknowledged or have failed.
        """
        return asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        sent: list[asyncio.Future[RecordMetadata]] = []
        errors: list[BaseException] = []
        for topic, partition, key, value in messages:
            try:
                sent.append(await self._producer.send(topic, value, key, partition))
            except AllocatorError as error:
                errors.append(error)
        results = await asyncio.gather(*sent, return_exceptions=True)
        errors += [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]

    # -- start and close ------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        await self._producer.start()
        self._loop = asyncio.get_running_loop()

    async def _wind_down(self) -> None:
        try:
            if self._loop is not None:
                await self._flush()
        finally:
            with contextlib.suppress(DeliveryFailed):  # `produce` or `flush` has raised it
                await self._producer.close()


def _at_random(key: Any, partitions: Sequence[int]) -> int:
    return random.choice(partitions)


def _rendered(data: Any) -> bytes | None:
    """Returns bytes and None as they are, and anything else as the UTF-8 of its text, as kiel does."""
    return data if data is None or isinstance(data, bytes) else str(data).encode()
