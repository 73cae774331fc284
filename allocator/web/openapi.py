"""Describes the HTTP API as OpenAPI 3.1, from the classes of its requests and responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, Union

import msgspec
from msgspec import Struct

from allocator import __version__
from allocator.web.responses import ErrorJson, HealthJson

MEANING = {
    400: "The request is wrong.",
    401: "The token is missing or wrong.",
    403: "The server is read-only, the user may not do this, or the page has another origin.",
    404: "The group is not known.",
    409: "The present state of the group does not allow it.",
    415: "The body is not JSON.",
    421: "The Host header does not name this server.",
    503: "The server is unhealthy or too busy.",
}
CHANGE = (400, 401, 403, 404, 409, 415)  # errors of each POST
NOT_WELL = (503,)
Response = Union[type[Struct], str, None]
"""The class of a JSON object, or the content type of a text; None for any JSON object."""
REF = "#/components/schemas/{name}"


@dataclass(frozen=True)
class Operation:
    """One path of the API with its method, parameters, response and errors."""

    path: str
    """Names in braces, such as `{group}`, are parameters; `{id}` is a number."""
    summary: str
    response: Response
    errors: tuple[int, ...]
    query: Optional[type[Struct]] = None
    body: Optional[type[Struct]] = None
    """The body of a POST; None for a GET."""


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """Returns a new OpenAPI document."""
    operations = list(operations)
    kinds = {kind for one in operations for kind in (one.response, one.body) if isinstance(kind, type)}
    _, schemas = msgspec.json.schema_components(sorted({*kinds, ErrorJson}, key=lambda k: k.__name__), ref_template=REF)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "allocator",
            "version": __version__,
            "description": "The groups that `allocator web` or a daemon's web server shows. Changes need a token.",
        },
        "paths": {one.path: {"get" if one.body is None else "post": _operation(one)} for one in operations},
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
    # in the document, `GroupJson` is called `Group`
    found: dict[str, Any] = msgspec.json.decode(re.sub(rb'Json"', b'"', msgspec.json.encode(document)))
    return found


def _operation(one: Operation) -> dict[str, Any]:
    errors = one.errors if one.errors == NOT_WELL else (*one.errors, 421)
    refusal = HealthJson if errors == NOT_WELL else ErrorJson
    refused = {str(code): _response(MEANING[code], refusal) for code in errors}
    found: dict[str, Any] = {
        "summary": one.summary,
        "parameters": [*_path(one.path), *_query(one.query)],
        "responses": {"200": _response("As of now." if one.body is None else "Done.", one.response), **refused},
    }
    if one.body is not None:
        found["security"] = [{"token": []}]
        if one.body.__struct_fields__:
            found["requestBody"] = {"required": True, **_content(one.body)}
    return found


def _content(kind: Response) -> dict[str, Any]:
    if isinstance(kind, str):
        return {"content": {kind: {"schema": {"type": "string"}}}}
    schema = {"type": "object"} if kind is None else {"$ref": REF.format(name=kind.__name__)}
    return {"content": {"application/json": {"schema": schema}}}


def _response(what: str, kind: Response) -> dict[str, Any]:
    return {"description": what, **_content(kind)}


def _path(path: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        schema = {"type": "integer", "minimum": 0} if name == "id" else {"type": "string"}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query(kind: Optional[type[Struct]]) -> Iterator[dict[str, Any]]:
    if kind is not None:
        for name, schema in msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"].items():
            if schema["default"] is None:  # a URL has no null
                del schema["default"]
                schema.update(next(each for each in schema.pop("anyOf") if each != {"type": "null"}))
            yield {"name": name, "in": "query", "required": False, "schema": schema}
