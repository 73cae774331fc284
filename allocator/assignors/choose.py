"""Members that offer different allocator functions."""

from __future__ import annotations

from collections.abc import Sequence

from allocator.errors import InconsistentAssignor

__all__ = ["choose"]


def choose(offers: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, dict[str, str]]:
    """The function the group uses, and the members that cannot take part in it.

    `offers`: (member id, names in order of preference), in join order. Members are taken in one by one as
    long as all have a name in common: a newcomer with another configuration is refused (member id -> reason)
    and never changes what the older ones run. The name is the one that the oldest member prefers among those
    all share.

    Raises InconsistentAssignor when no member offers anything.
    """
    common: list[str] = []
    oldest = ""
    refused: dict[str, str] = {}
    for member, names in offers:
        if not names:
            refused[member] = "it offers no allocator function; name at least one"
        elif not oldest:
            oldest, common = member, list(names)
        else:
            shared = [name for name in common if name in names]
            if shared:
                common = shared
            else:
                refused[member] = (
                    f"it offers {_listed(names)}, the members before it (the oldest is {oldest!r}) "
                    f"share {_listed(common)}; offer one of these too"
                )
    if not oldest:
        raise InconsistentAssignor("no member of the group offers an allocator function; name at least one")
    return common[0], refused


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
