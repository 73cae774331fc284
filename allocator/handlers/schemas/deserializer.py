"""Deserializes records that name their schema in a schema registry."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Union

from allocator.core.aio import Backoff
from allocator.handlers.schemas.registry import Registry, RegistryFailed
from allocator.handlers.schemas.schema import HEADER, Schema, as_reader_schema, schema_id

log = logging.getLogger(__name__)

# Seconds before a request to an unreachable registry is retried, doubled up to the maximum. Higher: slower recovery;
# lower: more requests.
BACKOFF_S = 0.5
BACKOFF_MAX_S = 15.0
REFUSED_S = 30.0  # seconds until a schema that the registry does not have is requested again
# number of ids, of 300 bytes each. Higher: more memory; lower: more requests for bytes that resemble the format
MAX_REFUSED = 20_000
MAX_WARNED = 10  # warnings about ids that the registry does not have, within `REFUSED_S`


class RegistryDeserializer:
    """Decodes records in Confluent's wire format to Python values, by their schemas in a registry.

        orders = RegistryDeserializer("http://registry:8081", reader_schema=ORDER)
        Consumer("orders", brokers="b1:9092", group="billing", value_deserializer=orders)

    A consumer loads the schemas of a batch before it delivers the batch, and requests each id once. While the registry
    does not respond, the consumer waits and logs a warning for each attempt; it keeps its partitions and skips nothing.
    Bytes without a schema id, an id that the registry does not have, and bytes that do not match their schema raise
    ValueError, like any error of a deserializer. An unknown id is requested again after 30 s.

    Avro records become dicts, with datetime, Decimal and UUID for logical types, as fastavro decodes them. JSON becomes
    its parsed value. Protobuf becomes a message of the class `reader_schema`, or of the type that the record names.

    One deserializer can serve keys and values of any number of topics and consumers. Wire format:
    https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/
    """

    def __init__(self, registry: Union[str, Registry], *, reader_schema: Any = None, timeout_s: float = 5.0) -> None:
        """`registry` is a URL, which may contain user and password. `timeout_s` limits one request.

        `reader_schema` is an Avro schema as JSON text, dict or list, to which records of older and newer schemas are
        resolved (defaults, aliases, promotions), or a Protobuf class that `protoc` wrote. None: each record is decoded
        by its own schema. Raises ConfigError, and MissingExtra for Avro without fastavro.
        """
        self.registry = registry if isinstance(registry, Registry) else Registry(registry, timeout_s=timeout_s)
        self._reader = as_reader_schema(reader_schema)
        self._decoders: dict[int, Callable[[bytes], Any]] = {}
        # id -> (time of the next request, why there is no schema)
        self._refused: dict[int, tuple[float, str]] = {}  # the oldest first
        self._forgot = False  # whether `_refused` was full
        self._warned, self._warn_again = 0, 0.0  # warnings in this period, and the time of its end

    def __call__(self, data: bytes) -> Any:
        """Decodes one key or value. Raises ValueError for invalid bytes, or if their schema is not loaded."""
        number = schema_id(data)
        if number is None:
            raise ValueError("no schema id: the bytes do not begin with a zero and four bytes")
        decode = self._decoders.get(number)
        if decode is not None:
            try:
                return decode(data[HEADER:])
            except ValueError as error:
                raise ValueError(f"schema {number}: {error}") from error
        refused = self._refused.get(number)
        if refused is not None:
            raise ValueError(refused[1])
        if self._forgot:
            raise ValueError(
                f"schema {number} is not loaded: the registry refused more than {MAX_REFUSED} ids. Are these bytes in "
                "the format of the registry? Other binary values often begin with a zero, too"
            )
        raise ValueError(f"schema {number} is not loaded; outside of Consumer, call await load([{number}]) first")

    def missing(self, data: Iterable[Union[bytes, None]]) -> set[int]:
        """Returns the schema ids in these keys or values that `load` must request."""
        headers = {each[:HEADER] for each in data if each is not None}
        ids = {number for number in map(schema_id, headers) if number is not None}
        now = time.monotonic()
        return {
            number for number in ids if number not in self._decoders and self._refused.get(number, (now, ""))[0] <= now
        }

    async def load(self, ids: Collection[int]) -> None:
        """Loads these schemas. Waits while the registry does not respond. Raises MissingExtra."""
        for number in sorted(ids):
            await self._load(number)

    async def _load(self, number: int) -> None:
        backoff, since = Backoff(BACKOFF_S, BACKOFF_MAX_S), time.monotonic()
        while True:
            try:
                schema = await self.registry.schema(number)
                self._decoders[number] = self._decoder(schema)
            except RegistryFailed as error:
                pause_s = backoff.next()
                log.warning("schema %d: %s; trying again in %g s", number, error, pause_s)
            except ValueError as error:  # includes ConfigError
                self._refuse(number, error)
                return
            else:
                self._refused.pop(number, None)
                if backoff.pauses:
                    log.info("schema %d: loaded after %.1f s", number, time.monotonic() - since)
                return
            await asyncio.sleep(pause_s)

    def _refuse(self, number: int, error: ValueError) -> None:
        now = time.monotonic()
        if now >= self._warn_again:
            self._warned, self._warn_again = 0, now + REFUSED_S
        self._warned += 1
        log.log(
            logging.WARNING if self._warned <= MAX_WARNED else logging.DEBUG,
            "schema %d: %s; its records cannot be decoded%s",
            number,
            error,
            f". For {REFUSED_S:g} s, other such ids are logged at DEBUG" if self._warned == MAX_WARNED else "",
        )
        self._refused.pop(number, None)
        if len(self._refused) >= MAX_REFUSED:
            self._forgot = True
            del self._refused[next(iter(self._refused))]
        self._refused[number] = now + REFUSED_S, f"schema {number}: {error}"

    def _decoder(self, schema: Schema) -> Callable[[bytes], Any]:
        """Returns the decoding function of a schema. Raises ValueError if the reader schema is of another kind."""
        return schema.decoder(self._reader)
