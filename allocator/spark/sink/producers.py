"""The producers of the sink.

confluent-kafka's sends about 15 times as many records a second as kafka-python's (docs/spark.md has the numbers), so
it is taken where it is installed, the brokers are not older than 0.10, and it knows the security settings. Else it is
kafka-python's, which every installation has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from allocator.spark.errors import WriteFailed
from allocator.spark.link import ClusterLink
from allocator.spark.options import Options

if TYPE_CHECKING:
    from allocator.spark.sink.sink import Out

__all__ = ["Sending", "producer"]

# kafka-python's names -> librdkafka's
RDKAFKA: Mapping[str, str] = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
    "ssl_crlfile": "ssl.crl.location",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
}
LINGER_MS = 20  # more: larger batches; less: a small task ends sooner
QUEUED_BYTES = 64 << 20


class Sending(Protocol):
    """Takes records; `finish` returns when all are acknowledged by all replicas in sync, or raises WriteFailed."""

    def send(self, topic: str, record: Out) -> None: ...

    def finish(self) -> None: ...


@contextlib.contextmanager
def producer(options: Options) -> Iterator[Sending]:
    """A producer for the brokers, with idempotence where they have it (0.11)."""
    with ClusterLink(options) as link:
        version = link.run(_version(link))
    rdkafka: Any = None
    if version >= (0, 10) and options.security.keys() <= RDKAFKA.keys():
        with contextlib.suppress(ImportError):
            rdkafka = import_module("confluent_kafka")
    sending: Any = _KafkaPython(options, version) if rdkafka is None else _RdKafka(rdkafka, options, version)
    try:
        yield sending
    finally:
        sending.close()


async def _version(link: ClusterLink) -> tuple[int, ...]:
    return (await link.client()).broker_version


class _Failures:
    """What was not acknowledged: how much, and why the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, where: str, why: object) -> None:
        self.first = self.first or f"{where}: {why}"
        self.count += 1

    def raise_if_any(self) -> None:
        if self.count:
            raise WriteFailed(
                f"{self.count} records were not acknowledged, the first of them for {self.first}; look at the topic's "
                "existence, its max.message.bytes and this client's rights; what was acknowledged stays written"
            )


class _RdKafka:
    def __init__(self, module: Any, options: Options, version: tuple[int, ...]) -> None:
        self._failures = _Failures()
        security = {RDKAFKA[key]: value for key, value in options.security.items()}
        if "ssl_check_hostname" in options.security:
            # the name of a way of checking, instead of a flag
            hostname = "https" if options.security["ssl_check_hostname"] else "none"
            security[RDKAFKA["ssl_check_hostname"]] = hostname
        self._producer = module.Producer(
            {
                "bootstrap.servers": ",".join(options.brokers),
                "client.id": "allocator-spark",
                "acks": "all",
                "enable.idempotence": version >= (0, 11),
                "compression.type": options.compression,
                "delivery.timeout.ms": int(options.timeout_s * 1000),
                "linger.ms": LINGER_MS,
                "batch.size": 1 << 20,
                "message.max.bytes": 1_000_000_000,  # the broker decides what is too large
                "partitioner": "murmur2_random",  # as Java's and kafka-python's
                "queue.buffering.max.kbytes": QUEUED_BYTES >> 10,
                **security,
            }
        )

    def send(self, topic: str, record: Out) -> None:
        where = {} if record.partition is None else {"partition": record.partition}
        headers = None if record.headers is None else list(record.headers)
        while True:
            try:
                self._producer.produce(
                    topic, record.value, record.key, headers=headers, on_delivery=self._delivered, **where
                )
            except BufferError:
                self._producer.poll(0.1)  # full: wait for acknowledgements
                self._failures.raise_if_any()
            else:
                return

    def finish(self) -> None:
        self._producer.flush()
        self._failures.raise_if_any()

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(5)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.add(f"{message.topic()}:{message.partition()}", error.str())


class _KafkaPython:
    def __init__(self, options: Options, version: tuple[int, ...]) -> None:
        from kafka import KafkaProducer

        settings = dict(options.security)
        if version < (0, 10):
            settings["api_version"] = version  # it cannot find that out itself there
        self._with_headers = version >= (0, 11)
        self._failures = _Failures()
        wait_ms = int(options.timeout_s * 1000)
        self._producer = KafkaProducer(
            bootstrap_servers=list(options.brokers),
            client_id="allocator-spark",
            acks="all",
            enable_idempotence=self._with_headers,
            compression_type=None if options.compression == "none" else options.compression,
            linger_ms=LINGER_MS,
            batch_size=1 << 20,
            max_block_ms=wait_ms,
            delivery_timeout_ms=wait_ms,
            request_timeout_ms=max(1, wait_ms // 2),
            max_request_size=1 << 28,
            **settings,
        )

    def send(self, topic: str, record: Out) -> None:
        import kafka.errors as kafka_errors

        if record.headers and not self._with_headers:
            raise WriteFailed("brokers before 0.11 have no headers; drop the column")
        key, value = (text.encode() if isinstance(text, str) else text for text in (record.key, record.value))
        # kafka-python cannot send a header without a value
        headers = [(name, data or b"") for name, data in record.headers or ()] if self._with_headers else None
        where = f"{topic}:{'any' if record.partition is None else record.partition}"
        try:
            sent = self._producer.send(topic, value, key, headers=headers, partition=record.partition)
        except (kafka_errors.KafkaError, AssertionError, ValueError) as error:
            self._failures.add(where, error)
            self._failures.raise_if_any()
        else:
            sent.add_errback(lambda error: self._failures.add(where, error))

    def finish(self) -> None:
        self._producer.flush()
        self._failures.raise_if_any()

    def close(self) -> None:
        self._producer.close(timeout=5)
