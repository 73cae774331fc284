"""Reads the newest assignment for one member."""

from __future__ import annotations

import asyncio
import logging

from allocator.documents import InvalidZnode
from allocator.protocols.zookeeper.client.client import Stat, Watch, get_if_exists
from allocator.protocols.zookeeper.znodes.changes import Changes
from allocator.protocols.zookeeper.znodes.documents import AssignmentDocument
from allocator.protocols.zookeeper.znodes.store import Store

log = logging.getLogger(__name__)

OVERTAKEN = 3  # tries, each overtaken by another write, before a member reads the whole document


class AssignmentReader:
    """Reads a small assignment whole each time, and a large one once; then only its changes, while they lead from the
    last read to the newest document.

    Create a new reader for each session.
    """

    def __init__(self, store: Store, member: str) -> None:
        self._store = store
        self._member = member
        self._document: AssignmentDocument | None = None  # None if the next read is a whole one
        self._stat = Stat(-1, 0, 0, 0)  # of `_document`

    async def read(self, watch: Watch) -> tuple[AssignmentDocument | None, Stat | None]:
        """Returns the assignment of this member alone, and the stat of its znode; (None, None) when there is none.
        Calls `watch` once, when the assignment may have changed. Raises InvalidZnode."""
        last, self._document = self._document, None
        if last is None:
            document, stat, size = await self._store.sized_document(watch, only=self._member)
        else:
            document = await self._newest(last, watch)
            if document is not None:
                self._document = document
                return document, self._stat
            # `_newest` has set the watch
            document, stat, size = await self._store.sized_document(only=self._member)
        if stat is not None and size >= self._store.WHOLE_BYTES:
            self._document, self._stat = document, stat
        return document, stat

    async def _newest(self, last: AssignmentDocument, watch: Watch) -> AssignmentDocument | None:
        """Returns the newest document from `last` and the changes since; None if it must be read whole."""
        zk, paths = self._store.zk, self._store.paths
        for _ in range(OVERTAKEN):
            # both requests are on their way at once
            stat, found = await asyncio.gather(zk.exists(paths.assignment, watch), get_if_exists(zk, paths.base))
            if stat is None or stat.created_zxid != self._stat.created_zxid or found is None:
                return None  # versions count from the creation of the znode
            if stat.version == self._stat.version:
                return last
            data, counted = found
            if not data:  # a leader of an older version wrote the document, or too much has changed
                return None
            try:
                changes = Changes.decode(paths.base, data, last.writes)
                # the versions show whether the changes were written together with this document
                if changes.writes != counted.version or changes.version < stat.version:
                    return None
                if changes.version > stat.version:
                    continue  # the leader wrote between the two requests, so the watch has fired
                document = changes.apply(paths.base, self._member, last, self._stat.version)
            except InvalidZnode as error:
                log.warning("%s: %s; reading the whole assignment", paths.group, error)
                return None
            if document is not None:
                self._stat = stat
            return document
        return None
