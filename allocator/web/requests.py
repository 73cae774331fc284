"""Describes and validates the API's requests: a class for each body and each query of a URL."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypeVar, Union

import msgspec
from msgspec import Meta, Struct

from allocator.commands import KINDS
from allocator.core.settings import DEFAULT
from allocator.core.text import shown
from allocator.errors import ConfigError
from allocator.handlers.schemas import PlainFormat
from allocator.operate import WITHDRAWN_BY_PARTITION
from allocator.types import IsolationLevel
from allocator.viewer import Position, Query, parse_key
from allocator.web.responses import LetterName, described

NOTE = 500  # maximum number of characters of a note
HOURS = 24 * 365
MOST = 200  # maximum number of hypothetical changes and of commands in one plan
LETTERS = 1000  # maximum number of letters that one request settles; their names must fit into the body
RECORDS = 1000  # maximum number of records in one response

T = TypeVar("T", bound=Struct)
Time = Annotated[float, Meta(ge=0, le=1e11)]

# replacements for the names of types in msgspec's errors
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
    """Converts `given` to an object of the class. With `strict=False`, texts of a URL's query become numbers.

    Raises ConfigError, which names the field, its value and the allowed values.
    """
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown and kind.__struct_config__.forbid_unknown_fields:
        raise ConfigError(f"{', '.join(map(shown, unknown))} is not a known field; known: {', '.join(known) or 'none'}")
    try:
        return msgspec.convert(given, kind, strict=strict)
    except UnicodeEncodeError as error:  # from msgspec, for a text that it converts to another type
        raise ConfigError(f"{shown(error.object)} is no valid text: it has half of a surrogate pair") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(_explained(str(error), kind, given)) from None


def _explained(error: str, kind: type[Struct], given: Any) -> str:
    what, _, place = error.replace("`", "").partition(" - at $.")
    fields = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    field = fields.get(re.split(r"[.\[]", place or what.rpartition(" ")[2])[0], {})
    text = field.get("description", field.get("items", {}).get("description"))
    help = "" if text is None else f": {text}"
    if what.startswith("Object "):  # a missing or unknown field
        return f"{place or 'the request'}: {what.removeprefix('Object ')}{help}"
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
        given = given[int(index)] if index else given[name]
    wanted = what.removeprefix("Expected ").partition(", got")[0]
    if "enum" in field:
        wanted = "one of " + ", ".join(field["enum"])
    if wanted == "Number out of range":  # msgspec's text for a number that no float can hold
        wanted = "a number that is not too large"
    wanted = " ".join(WORDS.get(word, word) for word in wanted.split())
    return f'"{place}" must be {wanted}, not {shown(given)}{help}'


@dataclass(frozen=True)
class Post:
    """A change that the API offers: the classes of its body and response, and the method that executes it.

    Arguments of `make`: the object that executes changes, the name of the group or topic, the body, and the user.
    """

    summary: str
    body: type[Struct]
    response: type[Struct]
    make: Callable[..., Awaitable[dict[str, Any]]]

    def __call__(self, maker: Any, name: str, given: Mapping[str, Any], user: str) -> Awaitable[dict[str, Any]]:
        """Validates the body and executes the change. Raises ConfigError for a wrong body."""
        make: Callable[..., Awaitable[dict[str, Any]]] = getattr(maker, self.make.__name__)
        return make(name, checked(self.body, given), user)


class Body(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    pass


class Nothing(Body):
    pass


Confirm = Annotated[
    Optional[str],
    described("The name of the changed group or topic. Without it, the server only returns what it would do."),
]


def confirmed(confirm: Optional[str], subject: str, name: str) -> bool:
    """Returns whether to execute the request. Raises ConfigError if `confirm` is neither `name` nor None."""
    if confirm not in (None, name):
        raise ConfigError(f'"confirm" must be the name of the {subject}, {name!r}, or be left out for a preview')
    return confirm is not None


class CommandRequest(Body):
    kind: Annotated[str, Meta(extra_json_schema={"enum": sorted(KINDS)})]
    arguments: Annotated[dict[str, Any], described("The arguments of this kind of command.")]
    why: str = ""
    hours: Annotated[
        Optional[Annotated[float, Meta(gt=0, le=HOURS)]],
        described("Hours until the command expires; by default never."),
    ] = None

    @property
    def expires_s(self) -> Optional[float]:
        """Seconds until the command expires; None for never."""
        return None if self.hours is None else 3600.0 * self.hours


class NewCommand(CommandRequest):
    create: Annotated[bool, described("Create the command topic of a group that uses Kafka's own protocols.")] = False


class WithdrawRequest(Body):
    kind: Annotated[str, Meta(extra_json_schema={"enum": sorted(WITHDRAWN_BY_PARTITION)})]
    arguments: Annotated[dict[str, Any], described("`partitions`; for `skip` also `offset`.")]


class RemoveRequest(Body):
    ids: Annotated[list[str], Meta(min_length=1, description="Ids of the commands.")]


Changes = Annotated[list[str], Meta(max_length=MOST, description="Like this option of `allocator group plan`.")]


class Suppositions(Body):
    add: Changes = []
    remove: Changes = []
    fail: Changes = []
    fail_rack: Changes = []
    weight: Changes = []
    partitions: Changes = []


class PlanRequest(Suppositions):
    function: Annotated[
        Optional[str], described("An allocator function that is built in, or an entry point on the server.")
    ] = None
    commands: Annotated[list[CommandRequest], Meta(max_length=MOST)] = []
    apply: Annotated[bool, described("Also add the commands; refused if the plan has hypothetical changes.")] = False
    why: str = ""


class DeleteRequest(Body):
    keep_offsets: bool = False
    confirm: Confirm = None


class ResetRequest(Body):
    to: Annotated[
        Union[str, int], described("earliest, latest, an offset, shift:N, timestamp:MILLISECONDS, or an ISO 8601 time")
    ]
    topics: Annotated[list[str], described("Topics, or partitions such as orders:0,2-5. Empty: all of the group.")] = []
    confirm: Confirm = None


class CopyRequest(Body):
    to: Annotated[str, described("The group that gets the offsets. It must have no members.")]
    confirm: Confirm = None


class NoteRequest(Body):
    text: Annotated[
        str,
        Meta(pattern=r"\S", max_length=NOTE, description="Text of the event, such as a deployed version; not blank."),
    ]


class LettersFilter(Body):
    error: Annotated[str, described("Only letters whose error contains this text; case does not matter.")] = ""
    from_topic: Annotated[str, described("Only letters of records from this topic.")] = ""
    since: Annotated[Optional[str], described("ISO 8601 time; only letters written at this time or later.")] = None
    until: Annotated[Optional[str], described("ISO 8601 time; only letters written before it.")] = None


class LettersRequest(LettersFilter):
    settled: bool = False


class SettleRequest(LettersFilter):
    letters: Annotated[list[LetterName], Meta(max_length=LETTERS)] = []
    confirm: Confirm = None


class DiscardRequest(SettleRequest):
    reason: Annotated[str, described("The reason why the letters are not written back.")] = ""


class LetterRequest(Body):
    letter: LetterName


class Times(Struct, rename={"from_": "from"}):
    from_: Annotated[Optional[Time], described("Epoch seconds; by default an hour before `to`.")] = None
    to: Annotated[Optional[Time], described("Epoch seconds; by default now.")] = None


class EventsQuery(Struct):
    group: Optional[str] = None


class RecordsQuery(Body):
    partition: Annotated[
        Optional[Annotated[int, Meta(ge=0, le=10**9)]],
        described("By default all partitions; with a key, the default partitioner's choice."),
    ] = None
    from_: Annotated[str, described("earliest, latest (the newest records), an offset or an ISO 8601 time.")] = "latest"
    before: Annotated[int, Meta(ge=0, le=RECORDS, description="Number of records before `from`.")] = 0
    limit: Annotated[int, Meta(ge=0, le=RECORDS, description="Maximum number of records from `from` on.")] = 50
    key: Annotated[Optional[str], described("Only records with this key.")] = None
    key_hex: Annotated[Optional[str], described("Only records with this key, in hex.")] = None
    every_partition: Annotated[bool, described("Search for the key in all partitions.")] = False
    isolation_level: IsolationLevel = DEFAULT["isolation_level"]
    # no format that names a file, because it would read a file of the server
    key_format: Annotated[PlainFormat, described("auto: the server's format for the topic.")] = "auto"
    value_format: Annotated[PlainFormat, described("The same for values; text and hex are refused if masks apply.")] = (
        "auto"
    )

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
