"""Finds an assignor by its name, its import path or its entry point, or adapts a callable."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union, get_args

from allocator.assignors.basic import naive, range_, roundrobin
from allocator.assignors.kiel import KielAssignor, naive_allocator
from allocator.assignors.load import LoadAssignor
from allocator.assignors.sticky import cooperative_sticky, rack_aware, sticky, weighted
from allocator.assignors.types import WANTABLE, Assignor, GroupView, wants
from allocator.core.settings import find, to_call
from allocator.errors import AssignorError
from allocator.types import LoadSource, PartitionLike

if TYPE_CHECKING:
    from importlib import metadata

ENTRY_POINT_GROUP = "allocator.assignors"

AssignorSpec = Union[str, Assignor, Callable[..., Any]]

_ALL: tuple[Assignor, ...] = (naive, range_, roundrobin, sticky, cooperative_sticky, weighted, rack_aware)
_BUILT_IN: Mapping[str, Assignor] = {each.name: each for each in _ALL}
# the setting `follow_load` selects these; users do not name them in `assignor`
_BY_LOAD: Mapping[str, Assignor] = {each.name: each for each in map(LoadAssignor, get_args(LoadSource))}


@dataclass(frozen=True)
class _Named:
    """Gives a user's function the name under which members agree on it."""

    name: str
    function: Callable[[GroupView], Mapping[str, Iterable[PartitionLike]]]

    def __call__(self, view: GroupView) -> Mapping[str, Iterable[PartitionLike]]:
        return self.function(view)

    @property
    def wants(self) -> frozenset[str]:
        return wants(self.function)


def built_in(name: str) -> Assignor | None:
    """Returns the assignor of this package with that name, or None. Imports no other packages."""
    return _BUILT_IN.get(name) or _BY_LOAD.get(name)


def known_names() -> list[str]:
    """Returns the names of the built-in assignors and of those in the entry points `allocator.assignors`, sorted."""
    return sorted({*_BUILT_IN, *_entry_points()})


def resolve(spec: AssignorSpec) -> Assignor:
    """Returns the assignor that `spec` names.

    `spec` is, in this order: the name of a built-in assignor; the name of an entry point in the group
    `allocator.assignors`; "package.module:function"; or the callable itself. A callable takes one positional argument
    (a `GroupView`) or kiel's two (members, partitions). A class is first called without arguments.

    Members agree on the name of an assignor: the name of the built-in assignor or of the entry point, or else the
    attribute `name` of the callable, or else "module:qualname". So a function and the text that names it agree.

    Raises AssignorError, which names `spec` and the known assignors.
    """
    if isinstance(spec, str):
        return _by_text(spec)
    if not callable(spec):
        raise AssignorError(f"an allocator function is a name, 'package.module:function' or a callable, not {spec!r}")
    return _adapt(spec, None)


def of_kiel(function: Callable[..., Any]) -> Assignor:
    """Returns an assignor for kiel's argument `partition_allocator`.

    If the callable accepts two arguments, as `lambda *a: ...` does, it is called with kiel's two. Raises AssignorError.
    """
    if isinstance(function, type):
        return resolve(function)
    try:
        inspect.signature(function).bind("members", "partitions")
    except TypeError:
        return resolve(function)
    except ValueError:  # some functions written in C have no signature
        pass
    return _adapt(function, None, of_kiel=True)


def _by_text(spec: str) -> Assignor:
    found = built_in(spec)
    if found is not None:
        return found
    points = _entry_points()
    if spec in points:
        try:
            target = points[spec].load()
        except (Exception, SystemExit) as error:  # the import runs the code of the package
            raise AssignorError(
                f"allocator function {spec!r}: entry point {points[spec].value!r} does not load: {error!r}"
            ) from error
        return _adapt(target, spec, forced=True)
    if ":" in spec:
        return _adapt(find(spec, f"allocator function {spec!r}", AssignorError), spec)
    known = sorted({*_BUILT_IN, *points})
    import difflib

    near = difflib.get_close_matches(spec, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise AssignorError(
        f"no allocator function {spec!r}{hint}; known: {', '.join(known)}; "
        "write your own function as 'package.module:function'"
    )


def _adapt(target: Any, spec: str | None, *, forced: bool = False, of_kiel: bool = False) -> Assignor:
    """Returns `target` as an Assignor.

    `spec` is the text that named it; `forced` makes that text the name of the assignor. `of_kiel`: `target` takes
    (members, partitions), whatever its signature is.
    """
    shown = repr(spec) if spec is not None else repr(target)
    target = to_call(target, f"allocator function {shown}", AssignorError)
    if target is naive_allocator:
        return naive  # the same function with two signatures: members that name either one agree
    own: Assignor = target
    if any(own is each for each in (*_BUILT_IN.values(), *_BY_LOAD.values())):
        return own
    name = spec if forced and spec is not None else _name(target, spec)
    if built_in(name) is not None:
        raise AssignorError(
            f"allocator function {shown} has the name {name!r}, which is built in; give it another name"
        )
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None)):  # noqa: B004
        raise AssignorError(f"allocator function {shown} is a coroutine; it must be a plain function")
    wanted = getattr(target, "wants", ())
    if isinstance(wanted, str) or not isinstance(wanted, Iterable) or not WANTABLE.issuperset(wanted):
        raise AssignorError(
            f"allocator function {shown}: its `wants` is {wanted!r}; it must be a collection with values from "
            f"{', '.join(map(repr, sorted(WANTABLE)))}"
        )
    if of_kiel or _positional(target, shown) == 2:
        return KielAssignor(name, target)
    if isinstance(target, Assignor) and target.name == name:
        return own
    return _Named(name, target)


def _positional(target: Callable[..., Any], shown: str) -> int:
    """Returns the number of required positional arguments: 1 is this library's signature, 2 is kiel's."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        raise AssignorError(f"allocator function {shown} has no readable signature: {error}") from error
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    positional = [p for p in required if p.kind is not p.KEYWORD_ONLY]
    if len(required) == len(positional) and len(positional) in (1, 2):
        return len(positional)
    raise AssignorError(
        f"allocator function {shown} takes ({', '.join(map(str, parameters))}); "
        "it must take one argument (the GroupView) or two (members, partitions)"
    )


def _name(target: Any, spec: str | None) -> str:
    own = getattr(target, "name", None)
    if isinstance(own, str) and own and not inspect.isroutine(target):
        return own
    inner = target
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not hasattr(inner, "__qualname__"):
        inner = type(inner)
    module, qualname = inner.__module__, inner.__qualname__
    if spec is not None and (inner is not target or _lookup(module, qualname) is not target):
        return spec  # lambdas, partials and instances have no importable name, so the text in `spec` names them
    return f"{module}:{qualname}"


def _lookup(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _entry_points() -> dict[str, metadata.EntryPoint]:
    from importlib import metadata

    if sys.version_info >= (3, 10):
        points: Iterable[metadata.EntryPoint] = metadata.entry_points(group=ENTRY_POINT_GROUP)
    else:
        points = metadata.entry_points().get(ENTRY_POINT_GROUP, ())
    return {point.name: point for point in points}
