"""Stores offsets and effects in PostgreSQL, through SQLAlchemy Core (the extra `sql`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from allocator.errors import ConfigError, MissingExtra
from allocator.handlers.sinks.sink import Parameters, TransactionalSink

if TYPE_CHECKING:
    import sqlalchemy


class SqlSink(TransactionalSink["sqlalchemy.Connection"]):
    """Stores offsets and effects in one PostgreSQL database.

    `engine` is a SQLAlchemy Engine, or a URL such as "postgresql+psycopg://user@host/shop". `effects` gets a SQLAlchemy
    Connection. If a process hangs inside a transaction, PostgreSQL ends its session after `idle_timeout_s` seconds,
    because its locked rows would block the next owner. None: the server's setting.

    Raises `MissingExtra` without SQLAlchemy, and ConfigError for another database.
    """

    def __init__(self, engine: Any, *, table: str = "allocator_offsets", idle_timeout_s: float | None = 60.0) -> None:
        super().__init__(table)
        try:
            import sqlalchemy
        except ImportError as error:
            raise MissingExtra("SqlSink needs SQLAlchemy: pip install 'zk-partition-allocator[sql]'") from error
        self._owns_engine = isinstance(engine, str)
        # the ping detects a restarted server before a write fails
        self.engine: Any = engine
        if self._owns_engine:
            try:
                url = sqlalchemy.make_url(engine)
            except (ValueError, sqlalchemy.exc.ArgumentError):  # its text may quote the URL, which may have a password
                raise ConfigError(
                    "the URL of this SqlSink is not valid: write it as postgresql+psycopg://user:password@host/db with "
                    "/ ? # @ : in the password as %2F %3F %23 %40 %3A"
                ) from None
            self.engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
        if self.engine.dialect.name != "postgresql":
            raise ConfigError(f"SqlSink is for PostgreSQL, not {self.engine.dialect.name}; SqliteSink is for SQLite")
        self._text = sqlalchemy.text
        self._driver_errors = (sqlalchemy.exc.SQLAlchemyError,)
        self._idle_timeout_s = idle_timeout_s

    def close(self) -> None:
        """Closes the connections if the sink created the engine from a URL."""
        if self._owns_engine:
            self.engine.dispose()

    def _errors(self) -> tuple[type[Exception], ...]:
        return self._driver_errors

    def _execute(
        self, connection: sqlalchemy.Connection, statement: str, parameters: Parameters | Sequence[Parameters]
    ) -> Any:
        return connection.execute(self._text(statement), parameters)

    def _in_transaction(self, connection: sqlalchemy.Connection) -> bool:
        return bool(connection.in_transaction())

    def _prepare(self) -> None:
        if not self._prepared:
            self._refuse_autocommit()
        super()._prepare()

    def _refuse_autocommit(self) -> None:
        """Raises ConfigError if each statement is its own transaction, so that effects cannot be rolled back.

        It checks with the server, because an engine, its URL and its pool can each set the mode. With autocommit, a
        setting for one transaction no longer applies to the next statement.
        """
        with self._transaction() as connection:
            self._execute(connection, "SELECT set_config('allocator.transaction', 'open', true)", {})
            mode = self._execute(connection, "SELECT current_setting('allocator.transaction', true)", {})
            if mode.scalar() != "open":
                raise ConfigError(
                    f"the engine of this SqlSink ({self.engine.url!r}) commits each statement by itself, so effects "
                    "would be stored without their offset, and by former owners: create it without AUTOCOMMIT"
                )

    @contextmanager
    def _transaction(self) -> Iterator[sqlalchemy.Connection]:
        with self.engine.begin() as connection:
            if self._idle_timeout_s is not None:
                limit_ms = max(1, round(self._idle_timeout_s * 1000))
                connection.execute(self._text(f"SET LOCAL idle_in_transaction_session_timeout = {limit_ms}"))
            yield connection
