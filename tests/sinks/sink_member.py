"""A member process that writes effects to a database, so that tests can freeze and kill it.

    python sink_member.py '{"place": ..., "effects": ..., "offsets": ..., "freeze_at": ..., "consumer": {...}}'

Prints one word a line for each event.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from typing import Any

from allocator import Batch, Consumer
from allocator.core.consumer import membership_from
from allocator.errors import Fenced
from allocator.sinks import SqliteSink, SqlSink, TransactionalSink

AT_ONCE = 10  # records in a transaction


class Store:
    """A table of effects and its sink. The table has no key that would hide a repeated effect."""

    def __init__(self, place: str, effects: str, offsets: str) -> None:
        self.place, self.effects = place, effects
        self.sqlite = "://" not in place
        self.sink: TransactionalSink = (
            SqliteSink(place, table=offsets) if self.sqlite else SqlSink(place, table=offsets)
        )
        self._change(f"CREATE TABLE IF NOT EXISTS {effects} (part INTEGER, number INTEGER)")

    def store(self, connection: Any, unit: Any) -> None:
        """Stores the effects of a batch or a record."""
        records = list(unit) if hasattr(unit, "base_offset") else [unit]
        rows = [{"part": record.partition, "number": record.offset} for record in records]
        statement = f"INSERT INTO {self.effects} VALUES (:part, :number)"
        if self.sqlite:
            connection.executemany(statement, rows)
        elif rows:
            import sqlalchemy

            connection.execute(sqlalchemy.text(statement), rows)

    def counts(self) -> Counter[tuple[int, int]]:
        """(partition, offset) -> how often the store has its effect."""
        return Counter((part, number) for part, number in self._rows(f"SELECT part, number FROM {self.effects}"))

    def written(self) -> int:
        return int(self._rows(f"SELECT count(*) FROM {self.effects}")[0][0])

    def next_offset(self, part: int) -> int | None:
        """The offset in the row, without waiting for a transaction; None if there is none."""
        rows = self._rows(f"SELECT next_offset FROM {self.sink.table} WHERE part = {part}")
        return rows[0][0] if rows else None

    def lose(self, part: int, kept: int | None) -> None:
        """Brings the tables back to when the next offset was `kept`, as a replica that was behind has them."""
        self._change(f"DELETE FROM {self.effects} WHERE part = {part} AND number >= {kept or 0}")
        next_offset = "NULL" if kept is None else kept
        self._change(f"UPDATE {self.sink.table} SET next_offset = {next_offset} WHERE part = {part}")

    def forget_owner(self, part: int, fence: int) -> None:
        """Brings the row back to an earlier owner."""
        self._change(f"UPDATE {self.sink.table} SET fence = {fence}, owner = 'former' WHERE part = {part}")

    def forget_row(self, part: int) -> None:
        """Brings the table back to before the first owner."""
        self._change(f"DELETE FROM {self.sink.table} WHERE part = {part}")

    def close(self) -> None:
        self.sink.close()

    def _change(self, statement: str) -> None:
        if self.sqlite:
            with closing(sqlite3.connect(self.place, timeout=30)) as connection, connection:
                connection.execute(statement)
        else:
            import sqlalchemy

            with self.sink.engine.begin() as connection:  # type: ignore[attr-defined]
                connection.execute(sqlalchemy.text(statement))

    def _rows(self, statement: str) -> list[Any]:
        if self.sqlite:
            with closing(sqlite3.connect(self.place, timeout=30)) as connection:
                return connection.execute(statement).fetchall()
        import sqlalchemy

        with self.sink.engine.connect() as connection:  # type: ignore[attr-defined]
            return list(connection.execute(sqlalchemy.text(statement)))


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


async def main(place: str, effects: str, offsets: str, freeze_at: int | None, consumer: dict[str, Any]) -> None:
    store = Store(place, effects, offsets)
    consumer["membership"] = membership_from(consumer.pop("membership", "zookeeper"), consumer.pop("joins"))
    async with Consumer(*consumer.pop("topics"), sink=store.sink, **consumer) as member:
        async for batch in member:
            for first in range(0, len(batch), AT_ONCE):
                write(store, batch[first : first + AT_ONCE], freeze_at)


def write(store: Store, batch: Batch, freeze_at: int | None) -> None:
    freezes = freeze_at is not None and batch.next_offset > freeze_at
    if freezes:
        say("freezes")
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        store.sink.write(batch, store.store)
    except Fenced:
        if freezes:
            say("refused")
            os._exit(0)
        # a busy machine let the session end: the records come again


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
