"""Arguments of a consumer from flat settings, for tests that run over several memberships."""

from __future__ import annotations

import dataclasses
from typing import Any

from allocator.core.consumer import membership_from
from allocator.core.memberships import known_memberships, options_of

__all__ = ["joined"]

_OWN = {field.name for name in known_memberships() for field in dataclasses.fields(options_of(name))} - {"zookeeper"}


def joined(membership: Any = "zookeeper", **settings: Any) -> dict[str, Any]:
    """Moves the settings of memberships into the object of `membership`, and drops those of other memberships."""
    own = {name: settings.pop(name) for name in _OWN & settings.keys()}
    return {"membership": membership_from(membership, own) if own else membership, **settings}
