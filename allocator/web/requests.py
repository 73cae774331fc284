"""What the API takes: a class for each body and each query of a URL. They check requests, and describe the API."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from allocator.core.commands import KINDS
from allocator.core.settings import DEFAULT
from allocator.core.text import shown
from allocator.errors import ConfigError
from allocator.handlers.schemas import PlainFormat
from allocator.operate import WITHDRAWN_BY_PARTITION
from allocator.types import IsolationLevel
from allocator.viewer import Position, Query, parse_key
from allocator.web.responses import LetterName, described

NOTE = 500  # characters of a note
HOURS = 24 * 365
MOST = 200  # suppositions and orders of one plan
LETTERS = 1000  # letters that one request may settle; their names must fit into the body
RECORDS = 1000  # records in one response

T = TypeVar("T", bound=Struct)
Time = Annotated[float, Meta(ge=0, le=1e11)]

# the names of types in errors of msgspec
WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "|": "or",
    "<=": "at most",
    ">=": "at least",
    ">": "above",
}


def checked(kind: type[T], given: Mapping[str, Any], *, strict: bool = True) -> T:
    """Returns `given` as an object of this class. `strict`: False for the texts of a URL's query.

    Raises ConfigError, which names the field, its value, and what it may be.
    """
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown and kind.__struct_config__.forbid_unknown_fields:
        raise ConfigError(f"{', '.join(map(shown, unknown))} is not known here; {', '.join(known) or 'nothing'} is")
    try:
        return msgspec.convert(given, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(_explained(str(error), kind, given)) from None


def _explained(error: str, kind: type[Struct], given: Any) -> str:
    what, _, place = error.replace("`", "").partition(" - at $.")
    fields = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    field = fields.get(re.split(r"[.\[]", place or what.rpartition(" ")[2])[0], {})
    text = field.get("description", field.get("items", {}).get("description"))
    help = "" if text is None else f": {text}"
    if what.startswith("Object "):  # it lacks a field, or has one that is unknown
        return f"{place or 'the request'}: {what.removeprefix('Object ')}{help}"
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
        given = given[int(index)] if index else given[name]
    wanted = what.removeprefix("Expected ").partition(", got")[0]
    if "enum" in field:
        wanted = "one of " + ", ".join(field["enum"])
    wanted = " ".join(WORDS.get(word, word) for word in wanted.split())
    return f'"{place}" must be {wanted}, not {shown(given)}{help}'


@dataclass(frozen=True)
class Post:
    """A change that the API offers: what it takes, what it answers, and the function that makes it.

    Arguments of `make`: the object that makes changes, the name of the group or topic, the body, and the user.
    """

    summary: str
    body: type[Struct]
    response: type[Struct]
    make: Callable[..., Awaitable[dict[str, Any]]]

    def __call__(self, maker: Any, name: str, given: Mapping[str, Any], user: str) -> Awaitable[dict[str, Any]]:
        """Makes the change. Raises ConfigError for a wrong body."""
        make: Callable[..., Awaitable[dict[str, Any]]] = getattr(maker, self.make.__name__)
        return make(name, checked(self.body, given), user)


class Body(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    pass


class Nothing(Body):
    pass


Confirm = Annotated[
    Optional[str], described("The name of what is changed. Without it, the server only answers what it would do.")
]


def confirmed(confirm: Optional[str], subject: str, name: str) -> bool:
    """Whether to execute a request. Raises ConfigError if it confirms another name than `name`."""
    if confirm not in (None, name):
        raise ConfigError(
            f'"confirm" must be the name of the {subject}, {name!r}, or be left out to see what would be done'
        )
    return confirm is not None


class OrderRequest(Body):
    kind: Annotated[str, Meta(extra_json_schema={"enum": sorted(KINDS)})]
    arguments: Annotated[dict[str, Any], described("As the kind has them.")]
    why: str = ""
    hours: Annotated[
        Optional[Annotated[float, Meta(gt=0, le=HOURS)]],
        described("The order ends after so many hours; left out, it has no end."),
    ] = None

    @property
    def expires_s(self) -> Optional[float]:
        """None for an order that never expires."""
        return None if self.hours is None else 3600.0 * self.hours


class NewOrder(OrderRequest):
    create: Annotated[bool, described("Create the topic of the orders, for a group of Kafka's own protocols.")] = False


class WithdrawRequest(Body):
    kind: Annotated[str, Meta(extra_json_schema={"enum": sorted(WITHDRAWN_BY_PARTITION)})]
    arguments: Annotated[dict[str, Any], described("`partitions`, and for skip `offset`.")]


class RemoveRequest(Body):
    ids: Annotated[list[str], Meta(min_length=1, description="The ids of the orders.")]


Changes = Annotated[list[str], Meta(max_length=MOST, description="As the option of `allocator group plan`.")]


class Suppositions(Body):
    add: Changes = []
    add_in_rack: Changes = []
    remove: Changes = []
    fail: Changes = []
    fail_rack: Changes = []
    weight: Changes = []
    rack: Changes = []
    partitions: Changes = []


class PlanRequest(Suppositions):
    function: Annotated[Optional[str], described("A built-in allocator function, or one that a member offers.")] = None
    orders: Annotated[list[OrderRequest], Meta(max_length=MOST)] = []
    apply: Annotated[bool, described("Give the orders; refused with a supposition.")] = False
    why: str = ""


class DeleteRequest(Body):
    keep_offsets: bool = False
    confirm: Confirm = None


class ResetRequest(Body):
    to: Annotated[
        Union[str, int],
        described("earliest, latest, an offset, shift:N, timestamp:MILLISECONDS, or an ISO 8601 time"),
    ]
    topics: Annotated[list[str], described("Empty: all topics of the group.")] = []
    confirm: Confirm = None


class CopyRequest(Body):
    to: Annotated[str, described("The other group, which has no members.")]
    confirm: Confirm = None


class NoteRequest(Body):
    text: Annotated[
        str, Meta(pattern=r"\S", max_length=NOTE, description="What was deployed, or what else happened; not blank.")
    ]


class LettersFilter(Body):
    error: Annotated[str, described("A part of the error, in any case.")] = ""
    from_topic: Annotated[str, described("The topic of the record.")] = ""
    since: Annotated[Optional[str], described("ISO 8601: letters written at this time or later.")] = None
    until: Annotated[Optional[str], described("ISO 8601: letters written before.")] = None


class LettersRequest(LettersFilter):
    settled: bool = False


class SettleRequest(LettersFilter):
    letters: Annotated[list[LetterName], Meta(max_length=LETTERS)] = []
    confirm: Confirm = None


class DiscardRequest(SettleRequest):
    reason: Annotated[str, described("Why they need nothing more.")] = ""


class LetterRequest(Body):
    letter: LetterName


class Times(Struct, rename={"from_": "from"}):
    from_: Annotated[Optional[Time], described("Epoch seconds; an hour before `to`, if left out.")] = None
    to: Annotated[Optional[Time], described("Epoch seconds; now, if left out.")] = None


class EventsQuery(Struct):
    group: Optional[str] = None


class RecordsQuery(Body):
    partition: Annotated[
        Optional[Annotated[int, Meta(ge=0, le=10**9)]],
        described("Without: all; with a key, the one that the default partitioner chooses."),
    ] = None
    from_: Annotated[str, described("earliest, latest (the newest records), an offset or an ISO 8601 time.")] = "latest"
    before: Annotated[int, Meta(ge=0, le=RECORDS, description="So many records before it.")] = 0
    limit: Annotated[int, Meta(ge=0, le=RECORDS, description="At most so many from there.")] = 50
    key: Annotated[Optional[str], described("Only records with this key.")] = None
    key_hex: Annotated[Optional[str], described("The same, as hex.")] = None
    every_partition: Annotated[bool, described("Look for the key in all partitions.")] = False
    isolation_level: IsolationLevel = DEFAULT["isolation_level"]
    # a format with a file would read files of the server
    key_format: Annotated[PlainFormat, described("auto takes the format that the server has for the topic.")] = "auto"
    value_format: Annotated[PlainFormat, described("As key_format; text and hex are refused if masks apply.")] = "auto"

    def of(self, topic: str) -> Query:
        """Returns the query for records of this topic. Raises ConfigError."""
        return Query(
            topic,
            self.partition,
            Position.parse(self.from_),
            self.limit,
            self.before,
            parse_key(self.key, self.key_hex),
            self.every_partition,
            self.isolation_level,
        )
