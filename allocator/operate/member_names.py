"""Resolves the names that operators use for members in commands. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.core.text import plain, shown
from allocator.errors import CommandRefused, ConfigError
from allocator.protocols.zookeeper import MemberInfo, member_name, members_named

Members = Mapping[str, MemberInfo]

MEMBER_ARGUMENTS = frozenset({"member", "old", "new", "place"})
"""The arguments of commands that name members."""


def lasting_name(group: str, members: Members, text: str, *, must_live: bool = True) -> str:
    """Returns the name to write into a command. Where possible, it stays valid when the process gets a new session.

    Raises CommandRefused if `text` names no live member (with `must_live`), or several.
    """
    found = members_named(text, members)
    if len(found) > 1:
        several = ", ".join(member_name(each, members[each]) for each in found)
        raise CommandRefused(f"{shown(text)} matches {len(found)} members; use one of these names: {plain(several)}")
    if not found:
        if not must_live:
            return text
        there = ", ".join(member_name(each, info) for each, info in members.items()) or "none"
        racks = {info.rack for info in members.values()}
        remedy = f"; a rack is written as rack:{plain(text)}" if text in racks else ""
        raise CommandRefused(f"group {group!r} has no live member {shown(text)}; its members: {plain(there)}{remedy}")
    info = members[found[0]]
    if text in (info.name, info.instance_id):
        return text
    process = member_name(found[0], info, session=False)
    return process if members_named(process, members) == found else found[0]


def with_lasting_names(group: str, members: Members, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a command with names from `lasting_name`.

    Raises CommandRefused for an unknown member or rack, and ConfigError if a member would replace itself.
    """
    named = dict(arguments)
    for name in ("member", "old", "new"):
        if name in named:
            named[name] = lasting_name(group, members, named[name], must_live=name != "new")
    if "old" in named and named["old"] == named["new"]:
        raise ConfigError(f"a member cannot replace itself: {shown(arguments['old'])}")
    place = named.get("place")
    if place is not None and "member" in place:
        named["place"] = {"member": lasting_name(group, members, place["member"])}
    elif place is not None:
        racks = sorted({info.rack for info in members.values() if info.rack is not None})
        if place["rack"] not in racks:
            there = ", ".join(racks) or "none"
            raise CommandRefused(f"no live member is in rack {shown(place['rack'])}; racks: {plain(there)}")
    return named


def names_of(member: str, info: MemberInfo) -> Iterable[str]:
    """Returns every name that a command may have for this member."""
    return filter(None, (member, info.name, info.instance_id, member_name(member, info, session=False)))
