"""Many records at once: lists of bytes, or Arrow columns, which the compiled encoder (`_encode.h`) takes without an
object for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from allocator.core.fetch import accelerated
from allocator.producer.builder import BatchBuilder
from allocator.producer.partitioner import RUN, Partitioner, Partitions

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnsToSend", "accelerated", "by_partition"]

# addresses of validity bits, ends and bytes; the first row; whether ends have 64 bits. None: every row is null
Buffers = Optional[tuple[int, int, int, int, bool]]


class RowsToSend(NamedTuple):
    """Records as lists, all with the same headers, the output of `encode_headers`. `keys` None: no record has a key."""

    keys: Optional[list[Optional[bytes]]]
    values: list[Optional[bytes]]
    headers: Optional[bytes] = None

    def by_partition(
        self,
        partition: int | None,
        choose: Callable[[Optional[bytes]], Optional[int]],
        runs: Callable[[int], Iterable[tuple[int, Sequence[int]]]] | None,
    ) -> Iterator[tuple[int, RowsToSend, Sequence[int]]]:
        """Yields each partition with its rows, in their order, and their numbers.

        `partition`: that of all rows. None: `choose` returns it for each key, or, if no row has one, `runs` returns
        those of so many rows. `runs` None: `choose` is called for these too.
        """
        many = len(self.values)
        if partition is not None:
            placed: Iterable[tuple[int, Sequence[int]]] = [(partition, range(many))]
        elif self.keys is None and runs is not None:
            placed = runs(many)
        else:
            chosen: dict[int, list[int]] = {}
            for number, key in enumerate(self.keys or repeat(None, many)):
                at = choose(key)
                assert at is not None  # the topic is known
                chosen.setdefault(at, []).append(number)
            placed = chosen.items()
        for at, numbers in placed:
            yield at, self if len(numbers) == many else self.take(numbers), numbers

    def take(self, numbers: Iterable[int]) -> RowsToSend:
        values, keys = self.values, self.keys
        return RowsToSend(
            None if keys is None else [keys[number] for number in numbers],
            [values[number] for number in numbers],
            self.headers,
        )

    def append_to(self, batch: BatchBuilder, first: int, end: int, timestamp: int, target: int) -> int:
        """As that of `ColumnsToSend`."""
        return batch.rows.append_rows(self.keys, self.values, self.headers, first, end, timestamp, target)


class ColumnsToSend(NamedTuple):
    """Records as Arrow arrays of `binary` or `string`, or of their large variants. None: every row is null.

    `headers` has the output of `producer.encoding.encode_headers` for each row.
    """

    keys: Optional[pa.Array]
    values: pa.Array
    headers: Optional[pa.Array] = None

    @classmethod
    def of(cls, keys: Any, values: Any, headers: Any = None) -> ColumnsToSend:
        """Converts Arrow columns of any layout of bytes or text. Raises TypeError for other types, and ValueError for
        columns of several lengths, beyond whose ends the compiled encoder would read."""
        import pyarrow as pa

        def plain(column: Any) -> Any:
            if isinstance(column, pa.ChunkedArray):
                column = column.combine_chunks()
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if str(column.type) in ("binary_view", "string_view", "null") or pa.types.is_fixed_size_binary(column.type):
                return column.cast(pa.binary())
            if str(column.type) not in ("binary", "string", "large_binary", "large_string"):
                raise TypeError(f"a column is {column.type}; pass one of binary or string")
            return column

        for column in (keys, headers):
            if column is not None:
                check_lengths(values, column)
        return cls(keys, values, headers).each(plain)

    def each(self, change: Callable[[pa.Array], pa.Array]) -> ColumnsToSend:
        """Applies `change` to each column that is not None."""
        return ColumnsToSend(*(None if column is None else change(column) for column in self))

    def append_to(self, batch: BatchBuilder, first: int, end: int, timestamp: int, target: int) -> int:
        """Appends rows, from `first` up to, not including, `end`, until the batch has `target` bytes. Returns the next
        row."""
        keys, values, headers = map(_buffers, self)
        after: int = batch.rows.append_columns(keys, values, headers, first, end, timestamp, target)  # type: ignore[attr-defined]
        return after


def check_lengths(values: Sequence[Any], keys: Sequence[Any]) -> None:
    if len(values) != len(keys):
        raise ValueError(f"there are {len(values)} values and {len(keys)} keys; pass a key for each value")


def by_partition(
    columns: ColumnsToSend, chosen: pa.Array | None, partitions: Partitions, partitioner: Partitioner
) -> Iterator[tuple[int, ColumnsToSend, Sequence[int]]]:
    """Yields each partition with its rows, in their order, and their numbers.

    `chosen` has the partition of each row. If it is null, the partitioner chooses by the key.
    """
    if chosen is None and columns.keys is None:
        for partition, run in partitioner.runs(len(columns.values), partitions):
            rows = slice(run.start, run.stop)
            yield partition, columns.each(lambda column, rows=rows: column[rows]), run  # type: ignore[misc]
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    placed = _placed(columns, partitions, partitioner) if chosen is None or chosen.null_count else chosen
    if chosen is not None and placed is not chosen:
        placed = pc.coalesce(chosen.cast(pa.int32()), placed)
    runs = pc.run_end_encode(placed.cast(pa.int32()))
    numbers: Sequence[int] = range(len(columns.values))
    if len(runs.values) > 1:
        order = pc.array_sort_indices(placed)  # a stable sort keeps the order of rows
        numbers = memoryview(order.buffers()[1]).cast("Q")
        columns = columns.each(lambda column: column.take(order))
        runs = pc.run_end_encode(placed.cast(pa.int32()).take(order))
    start = 0
    for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist()):
        rows = slice(start, end)
        yield partition, columns.each(lambda column, rows=rows: column[rows]), numbers[rows]  # type: ignore[misc]
        start = end


def _placed(columns: ColumnsToSend, partitions: Partitions, partitioner: Partitioner) -> pa.Array:
    """Returns the partition of each row, which the partitioner chooses."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys, rows, before = columns.keys, len(columns.values), partitioner.keyless
    keyless = rows if keys is None else keys.null_count
    placed, partitioner.keyless = _hashed(keys, rows, len(partitions.every), before)
    if not keyless or partitions.led == partitions.every:
        return placed
    in_turn, _ = _hashed(None, keyless, len(partitions.led), before)
    led = pa.array(partitions.led, pa.int32()).take(in_turn)
    return led if keys is None else pc.replace_with_mask(placed, keys.is_null(), led)


def _hashed(keys: pa.Array | None, rows: int, partitions: int, keyless: int) -> tuple[pa.Array, int]:
    """Returns a number below `partitions` for each row, by its key or in turn, and the next `keyless`."""
    import pyarrow as pa

    from allocator.core import _records  # type: ignore[attr-defined, unused-ignore]

    data, after = _records.hash_rows(_buffers(keys), rows, partitions, keyless, RUN)
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(data)]), after


def _buffers(array: Any) -> Buffers:
    if array is None or array.null_count == len(array):
        return None
    import pyarrow as pa

    addresses: Any = (0 if each is None else each.address for each in array.buffers())
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    return (*addresses, array.offset, wide)
