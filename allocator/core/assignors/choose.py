"""Chooses the allocator function of a group whose members offer different ones."""

from __future__ import annotations

from collections.abc import Sequence

from allocator.core.errors import InconsistentAssignor


def choose(offers: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, dict[str, str]]:
    """Returns the function that the group uses, and the members that do not offer it.

    `offers`: (member id, names in order of preference), in join order. Members are added in join order. A member
    without a name in common with all earlier ones is refused (member id -> reason), so that a new member with another
    configuration never changes the function of the older ones. The name is the one that the oldest member prefers among
    those all share.

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
