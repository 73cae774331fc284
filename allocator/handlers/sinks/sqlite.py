"""A sink in a file of SQLite, by the standard library."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from allocator.errors import ConfigError
from allocator.handlers.sinks.sink import Parameters, Transaction, TransactionalSink


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, statement: str, parameters: Parameters) -> Sequence[Sequence[Any]]:
        return list(self.connection.execute(statement, parameters))

    def change(self, statement: str, parameters: Parameters) -> int:
        return int(self.connection.execute(statement, parameters).rowcount)

    def change_all(self, statement: str, parameters: Sequence[Parameters]) -> None:
        self.connection.executemany(statement, parameters)

    def must_be_open(self) -> None:
        if not self.connection.in_transaction:
            raise ConfigError(
                "the effects ended the transaction, so they were stored without their offset: do not commit"
            )


class SqliteSink(TransactionalSink[sqlite3.Connection]):
    """Offsets and effects in one file of SQLite, for members on one machine.

    `effects` get a `sqlite3.Connection`. One transaction at a time writes to the file, of all processes together; a
    process waits for its turn `busy_timeout_s` seconds, then `write` raises sqlite3.OperationalError, and the unit may
    be written again.
    """

    def __init__(self, path: str, *, table: str = "allocator_offsets", busy_timeout_s: float = 30.0) -> None:
        super().__init__(table)
        self.path = str(path)
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    @contextmanager
    def _transaction(self) -> Iterator[Transaction[sqlite3.Connection]]:
        with self._lock:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
                )
            connection = self._connection
            # takes the write lock at once: a transaction that has read first may fail to get it later
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _SqliteTransaction(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
