"""Stores offsets and effects in an SQLite file, with the standard library."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from allocator.handlers.sinks.sink import Parameters, TransactionalSink

BUSY_TIMEOUT_S = 30.0


class SqliteSink(TransactionalSink[sqlite3.Connection]):
    """Stores offsets and effects in one SQLite file, for members on one machine.

    `effects` gets a `sqlite3.Connection`. SQLite allows only one writing transaction at a time, in all processes
    together. If a process has waited 30 seconds for another's transaction, `write` raises
    sqlite3.OperationalError, and you may write the unit again.
    """

    def __init__(self, path: str, *, table: str = "allocator_offsets") -> None:
        super().__init__(table)
        self.path = str(path)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def _execute(
        self, connection: sqlite3.Connection, statement: str, parameters: Parameters | Sequence[Parameters]
    ) -> sqlite3.Cursor:
        if isinstance(parameters, Mapping):
            return connection.execute(statement, parameters)
        return connection.executemany(statement, parameters)

    def _in_transaction(self, connection: sqlite3.Connection) -> bool:
        return connection.in_transaction

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
                )
            connection = self._connection
            # IMMEDIATE takes the write lock at once: a transaction that reads first may fail to get it later
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
