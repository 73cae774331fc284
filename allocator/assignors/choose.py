"""Chooses the assignor of a group whose members offer different ones."""

from __future__ import annotations

from collections.abc import Sequence

from allocator.errors import InconsistentAssignor


def choose(offers: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, dict[str, str]]:
    """Returns the name of the group's assignor, and the refused members: member id -> reason.

    `offers`: pairs of member id and assignor names in order of preference, in join order. A member that shares no name
    with all earlier members is refused. So a new member with another configuration never changes the assignor of the
    older members. Of the names that all other members share, the oldest member's preferred one is chosen.

    Raises InconsistentAssignor if no member offers an assignor.
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
