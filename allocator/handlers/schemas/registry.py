"""Requests schemas by id from a schema registry with Confluent's API.

API: https://docs.confluent.io/platform/current/schema-registry/develop/api.html. Compiled Protobuf schemas
(`format=serialized`) need Confluent's registry 5.5 or newer.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Collection
from typing import Any, Optional, TypeVar, Union
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from allocator.core.client import quoted
from allocator.core.text import parse_json, shown
from allocator.errors import AllocatorError, ConfigError
from allocator.handlers.schemas.schema import (
    Schema,
    avro_schema,
    json_schema,
    parsed_avro,
    protobuf_schema,
    reader_avro,
)

log = logging.getLogger(__name__)

Found = TypeVar("Found")

MAX_BYTES = 4 << 20  # bytes of one response
MAX_REFERENCES = 100  # references of one schema, including indirect ones
MAX_CACHED = 1000  # schemas. Higher: more memory; lower: more requests


class RegistryFailed(AllocatorError):
    """The schema registry does not respond, or its response has no usable schema."""

    retriable = True


class Registry:
    """The registry at `url`, which may contain user and password. Caches schemas: an id never changes its schema."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        """Parses the URL, without any I/O. Raises ConfigError if it is not valid."""
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # its text may quote the password: a "/" in it ends the part with the port
            sound = False
        if not sound or parts.query or parts.fragment:
            # the error does not quote the URL, because it may contain a password
            raise ConfigError(
                "the schema registry's URL is not valid: write it as http://registry:8081 or "
                "https://user:password@registry, with / ? # @ in the password as %2F %3F %23 %40"
            )
        address = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))
        """The URL without user and password."""
        self._user = None if parts.username is None else unquote(parts.username)
        self._password = None if parts.password is None else unquote(parts.password)
        self._timeout_s = timeout_s
        self._schemas: dict[int, Schema] = {}

    async def load(self, ids: Collection[int]) -> dict[int, Union[Schema, str]]:
        """Returns the schema of each id, or the reason why it is missing. Raises MissingExtra."""
        found: dict[int, Union[Schema, str]] = {}
        for number in sorted(ids):
            try:
                found[number] = await self.schema(number)
            except (RegistryFailed, ConfigError) as error:
                log.info("schema %d: %s", number, error)
                found[number] = f"schema {number} is not known: {error}"
                if error.retriable:
                    break  # with an unreachable registry, waits for one timeout, not for one for each id
        return found

    async def schema(self, number: int) -> Schema:
        """Returns the schema of an id.

        Raises RegistryFailed if the registry does not respond or its response is invalid, ConfigError if the registry
        has no such schema or the schema cannot be used, and MissingExtra.
        """
        known = self._schemas.get(number)
        if known is None:
            known = await self._masked(self._fetch(number))
            if len(self._schemas) >= MAX_CACHED:
                self._schemas.clear()
            self._schemas[number] = known
        return known

    async def latest(self, subject: str) -> Any:
        """Returns the latest schema of a subject in the form of `as_reader_schema`; None if it is not Avro.

        Raises ConfigError if there is no such subject, RegistryFailed, and MissingExtra.
        """
        return await self._masked(self._latest(subject))

    async def _latest(self, subject: str) -> Any:
        try:
            response = await self._request(f"/subjects/{quote(subject, safe='')}/versions/latest")
        except ConfigError:
            raise ConfigError(
                f"{self.url} has no subject {subject!r}; the serializers' default is TOPIC-value"
            ) from None
        if response.get("schemaType", "AVRO") != "AVRO":
            return None
        name, named = f"the latest schema of subject {subject}", await self._named(response)
        return reader_avro(_json_of(response), named, name)

    async def _masked(self, result: Awaitable[Found]) -> Found:
        """Returns the result. In its error, which may quote a schema, it masks the password and names the registry."""
        try:
            return await result
        except (RegistryFailed, ConfigError) as error:
            text = self._quoted(str(error))
            raise type(error)(text if self.url in text else f"registry {self.url}: {text}") from None

    def _quoted(self, text: str) -> str:
        """Returns the beginning of a text of the registry, which may quote the header of the request."""
        return quoted(text, (self._password or "",), before=(f"{self._user}:",) if self._user else ())

    async def _named(self, response: dict[str, Any]) -> dict[str, Any]:
        """Returns the Avro types that a schema refers to."""
        named: dict[str, Any] = {}
        for name, other in await self._references(response):
            parsed_avro(_json_of(other), named, name)
        return named

    async def _fetch(self, number: int) -> Schema:
        response = await self._request(f"/schemas/ids/{number}")
        kind, name = response.get("schemaType", "AVRO"), f"schema {number} of {self.url}"
        if kind == "JSON":
            return json_schema()
        if kind == "AVRO":
            return avro_schema(_json_of(response), await self._named(response), name)
        if kind == "PROTOBUF":
            files = [(path, await self._compiled(int(other["id"]))) for path, other in await self._references(response)]
            return protobuf_schema([*files, (f"schema-{number}.proto", await self._compiled(number))], name)
        raise ConfigError(f"{name} has the type {self._quoted(repr(kind))}; only AVRO, PROTOBUF and JSON are supported")

    async def _references(self, response: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Returns (name, response) of each schema that a schema refers to, after the references of that schema."""
        found: dict[str, dict[str, Any]] = {}
        seen: set[str] = set()

        async def follow(references: Any) -> None:
            for each in references or ():
                name = str(each["name"])
                if name in seen:
                    continue
                seen.add(name)
                if len(seen) > MAX_REFERENCES:
                    raise ConfigError(f"it refers to more than {MAX_REFERENCES} schemas")
                path = f"/subjects/{quote(str(each['subject']), safe='')}/versions/{int(each['version'])}"
                other = await self._request(path)
                await follow(other.get("references"))
                found[name] = other

        try:
            await follow(response.get("references"))
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryFailed(f"a reference of the response is not valid: {self._quoted(repr(error))}") from None
        return list(found.items())

    async def _compiled(self, number: int) -> bytes:
        text = (await self._request(f"/schemas/ids/{number}?format=serialized")).get("schema")
        try:
            return base64.b64decode(str(text), validate=True)
        except binascii.Error:
            raise ConfigError(
                "the registry does not compile schemas of Protobuf; "
                "name a descriptor set with confluent-protobuf:FILE:MESSAGE"
            ) from None

    async def _request(self, path: str) -> dict[str, Any]:
        request = HTTPRequest(
            self.url + path,
            headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"},
            auth_username=self._user,
            auth_password=self._password or ("" if self._user else None),
            connect_timeout=self._timeout_s,
            request_timeout=self._timeout_s,
            follow_redirects=False,
        )
        client = AsyncHTTPClient(force_instance=True, max_body_size=MAX_BYTES)
        try:
            response = parse_json((await client.fetch(request)).body)
        except HTTPClientError as error:
            if error.code in (404, 422):
                raise ConfigError(f"the registry {self.url} does not have it") from None
            raise RegistryFailed(f"{self.url} responds {error.code}: {self._quoted(error.message or '')}") from None
        except (OSError, ValueError) as error:
            raise RegistryFailed(
                f"{self.url} does not respond as a schema registry: {self._quoted(repr(error))}"
            ) from None
        finally:
            client.close()
        if not isinstance(response, dict):
            raise RegistryFailed(f"{self.url} responds with JSON that is not an object")
        return response


def _json_of(response: dict[str, Any]) -> Optional[Any]:
    try:
        return parse_json(response["schema"])
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryFailed(f"the response has no schema: {shown(error)}") from error
