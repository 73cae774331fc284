"""Reads the newest assignment for one member."""

from __future__ import annotations

import asyncio
import logging

from allocator.documents import InvalidZnode
from allocator.protocols.zookeeper.client.client import Watch, get_if_exists
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
        self._version = -1
        self._created = -1  # the transaction that created the znode: its versions count from there

    async def read(self, watch: Watch) -> tuple[AssignmentDocument | None, int]:
        """Returns the same as `Store.document` for this member alone. Calls `watch` once, when the assignment may have
        changed."""
        last, self._document = self._document, None
        if last is None:
            document, stat, size = await self._store.sized_document(watch, only=self._member)
        else:
            document = await self._newest(last, watch)
            if document is not None:
                self._document = document
                return document, self._version
            # `_newest` has set the watch
            document, stat, size = await self._store.sized_document(only=self._member)
        if stat is None:
            return None, -1
        if size >= self._store.WHOLE_BYTES:
            self._document, self._version, self._created = document, stat.version, stat.created_zxid
        return document, stat.version

    async def _newest(self, last: AssignmentDocument, watch: Watch) -> AssignmentDocument | None:
        """Returns the newest document from `last` and the changes since; None if it must be read whole."""
        zk, paths = self._store.zk, self._store.paths
        for _ in range(OVERTAKEN):
            # both requests are on their way at once
            stat, found = await asyncio.gather(zk.exists(paths.assignment, watch), get_if_exists(zk, paths.base))
            if stat is None or stat.created_zxid != self._created or found is None:
                return None
            if stat.version == self._version:
                return last
            data, counted = found
            if not data:  # a leader of an older version wrote the document, or too much has changed
                return None
            try:
                changes = Changes.decode(paths.base, data)
                # the versions show whether the changes were written together with this document
                if changes.writes != counted.version or changes.version < stat.version:
                    return None
                if changes.version > stat.version:
                    continue  # the leader wrote between the two requests, so the watch has fired
                document = changes.apply(paths.base, self._member, last, self._version)
            except InvalidZnode as error:
                log.warning("%s: %s; reading the whole assignment", paths.group, error)
                return None
            if document is not None:
                self._version = stat.version
            return document
        return None
