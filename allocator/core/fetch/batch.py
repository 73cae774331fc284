"""Defines `Batch`: records of one partition, decoded on first use."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Final, overload

from allocator.core.errors import AllocatorError, CorruptRecordError, DeserializationError, MissingExtra
from allocator.core.fetch import arrow
from allocator.core.fetch.codecs import decompressed
from allocator.core.fetch.decode import Columns, RecordSet
from allocator.core.record import Record
from allocator.core.text.html import SHOWN, table
from allocator.core.types import ColumnDeserializer, Deserializer

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from allocator.core.fetch.columns import Segment

# each record batch starts with its first offset and its length; the byte at _MAGIC_AT is the format version
_OFFSET_LENGTH: Final = struct.Struct(">qi")
_MAGIC_AT: Final = 16


class Batch(Sequence[Record]):
    """Consecutive records of one partition, stored as the bytes that the broker sent.

    Iteration yields `Record`s and decodes one record batch of the wire at a time, when it is reached. `batch[i]` is a
    record; `batch[a:b]` and `batch.from_offset(n)` are batches that share the bytes. `to_arrow()`, `keys` and `values`
    return columns without an object for each record. Records, slices and columns keep the bytes alive that they need.
    Threads may share a batch. `high_watermark` comes from the response, `leader_epoch` from the last record (None
    before Kafka 0.11).

    Deserializers are called for each record when it is reached, but not for null keys and values. If one raises, the
    iterator raises `DeserializationError`. To continue after that record, call `next(records)` on the same iterator, or
    use `batch.from_offset(error.offset + 1)`. Bytes that do not decode raise `CorruptRecordError`, and so does each
    further `next`.

    A batch that a consumer has delivered ends before such bytes instead, once they are found: iteration stops, columns
    have the records before them, and `next_offset` is their offset. The consumer's next request raises the error. If no
    record is before them, the batch raises it too.
    """

    __slots__ = (
        "_corrupt",
        "_end",
        "_ends",
        "_first",
        "_found",
        "_key_deserializer",
        "_last",
        "_on_corrupt",
        "_root",
        "_start",
        "_stop",
        "_value_deserializer",
        "high_watermark",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        found: RecordSet,
        *,
        start: int = 0,
        high_watermark: int = -1,
        key_deserializer: Deserializer = None,
        value_deserializer: Deserializer = None,
    ) -> None:
        """`found` is the result of `decode.scan`. Records below offset `start` are left out."""
        self.topic = topic
        self.partition = partition
        self.high_watermark = high_watermark
        self._found = found
        # the segments with records of this batch
        self._first = 0
        self._end = len(found.segments)
        self._start = start
        # the offset after this batch; its last offsets may have no visible record
        self._stop = found.next_offset
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        # for each segment, the number of records up to its end; computed on first use
        self._ends: list[int] | None = None
        # the segment that was decoded last: random access mostly stays within one segment
        self._last: tuple[int, Columns] | None = None
        # see `watch`; and the watched batch of which this one is a part
        self._on_corrupt: Callable[[int, CorruptRecordError], None] | None = None
        self._root: Batch | None = None
        # the error that ended a watched batch early
        self._corrupt: CorruptRecordError | None = None

    def watch(self, on_corrupt: Callable[[int, CorruptRecordError], None] | None) -> None:
        """Makes this batch and its slices end before bytes that do not decode, instead of raising the error. They raise
        it if they have no record before these bytes. None: they raise it in each case, and tell nobody.

        When they are found, `on_corrupt` is called with their offset and the error, in the thread that found them.
        """
        self._on_corrupt, self._root = on_corrupt, None

    def _repr_html_(self) -> str:
        """Returns the first records as an HTML table for notebooks. Decodes only these."""
        notes = [f"{self.topic}:{self.partition}, offsets {self.base_offset} to {self.next_offset - 1}"]
        rows: list[tuple[object, ...]] = []
        try:
            for record in islice(self, SHOWN):
                rows.append((record.offset, record.timestamp, _short(record.key), _short(record.value)))
        except AllocatorError as error:
            notes.append(str(error))
        return table(("offset", "timestamp", "key", "value"), rows, len(self), *notes)

    @property
    def base_offset(self) -> int:
        """A lower bound: the offset of the first record, or an offset before it."""
        return min(self._lowest, self.next_offset)

    @property
    def _lowest(self) -> int:
        first = self._found.segments[self._first].base_offset if self._first < self._end else self._stop
        return max(self._start, first)

    @property
    def next_offset(self) -> int:
        """Position after this batch. Transaction markers and removed records may be between it and the last record."""
        return self._stop if self._root is None else min(self._stop, self._root._stop)

    @property
    def leader_epoch(self) -> int | None:
        return self._found.segments[self._end - 1].leader_epoch if self._first < self._end else None

    @property
    def fence(self) -> int | None:
        """Fencing token of the ownership under which a consumer delivered the batch (`Consumer.fence`), or None."""
        return self._found.fence

    @property
    def nbytes(self) -> int:
        """Size on the wire, in bytes, of all record batches that have a record here."""
        return sum(segment.size for segment in self._found.segments[self._first : self._end])

    def __len__(self) -> int:
        """Returns the number of records.

        Decodes a record batch only if its header does not have the number: partial batches, and compressed old formats.
        """
        ends = self._row_ends()
        return ends[-1] if ends else 0

    def __iter__(self) -> Iterator[Record]:
        self._follow_root()
        return self._records(self._first, self._end, self._end_iteration)

    def _records(self, first: int, end: int, on_corrupt: Callable[[CorruptRecordError], object]) -> Iterator[Record]:
        records = self._found.records(first, end, self._start, self._stop, on_corrupt if self._is_watched else None)
        # without deserializers, no Python code runs for each record
        return records if self._is_raw() else map(self._deserialized, records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Batch: ...

    def __getitem__(self, index: int | slice) -> Record | Batch:
        if isinstance(index, slice):
            return self._slice(index)
        wanted = index + len(self) if index < 0 else index
        if not 0 <= wanted < len(self):
            raise IndexError(f"record {index} of a batch of {len(self)}")
        number, within = self._locate(wanted)
        try:
            columns, first, _ = self._part(number)
        except CorruptRecordError as error:
            # a record at the end is another one now
            if self._end_before(error) and index < 0:
                return self[index]
            raise
        record = next(columns.records(first + within, first + within + 1))
        return record if self._is_raw() else self._deserialized(record)

    def raw(self) -> Batch:
        """Returns the same records, with keys and values as bytes."""
        if self._is_raw():
            return self
        other = self._between(self._start, self._stop)
        other._key_deserializer = other._value_deserializer = None
        return other

    def from_offset(self, offset: int) -> Batch:
        """Returns the records at `offset` and above. They share the bytes."""
        return self._between(min(max(offset, self._start), self.next_offset), self._stop)

    def until_offset(self, offset: int) -> Batch:
        """Returns the records below `offset`. They share the bytes."""
        return self._between(self._start, min(offset, self._stop))

    def encoded(self, small: int = 0) -> Iterator[tuple[Batch, int, memoryview | None]]:
        """Yields the record batches of the wire, each as a `Batch`, with its codec and its bytes, for a mirror.

        The bytes are None if they also hold records outside this batch, or are not in format v2. Then adjacent record
        batches with the same codec are one `Batch`. So are adjacent ones of less than `small` bytes.
        """
        self._follow_root()
        at = 0
        group: list[Segment] = []
        data: memoryview | None = None  # the bytes of `group` if it is one record batch
        for segment in self._found.segments[self._first : self._end]:
            wire = None
            if segment.magic == 2:
                at, wire = self._wire(segment, at)
            if not self._whole(segment):
                wire = None
            alone = wire is not None and segment.size >= small
            if group and (alone or segment.codec != group[0].codec):
                yield self._of_segments(group), group[0].codec, data
                group = []
            data = None if group else wire
            group.append(segment)
            if alone:
                yield self._of_segments(group), segment.codec, data
                group = []
        if group:
            yield self._of_segments(group), group[0].codec, data

    def parts(self) -> Iterator[tuple[int, int, Iterator[Record]]]:
        """Yields the offset after each compressed record batch and each run of others, the bytes to which it
        decompresses, and its records.

        It decompresses a record batch when that is reached. Records and iterator keep these bytes in memory. In a
        watched batch it ends before bytes that do not decode, even if no record is before them.
        """
        self._follow_root()
        segments, number = self._found.segments, self._first
        while number < self._end:
            end = number + 1
            while not segments[number].codec and end < self._end and not segments[end].codec:
                end += 1
            stop = self._stop if end == self._end else segments[end - 1].next_offset
            yield self._begun(number, end, stop)
            number = end

    def _begun(self, first: int, end: int, stop: int) -> tuple[int, int, Iterator[Record]]:
        """Reads the first record of these segments, which end at `stop`. Returns what `parts` yields for them."""
        before = decompressed.nbytes
        records = self._records(first, end, self._end_before)
        begun = list(islice(records, 1))
        return min(stop, self._stop), decompressed.nbytes - before, chain(begun, records)

    def _of_segments(self, group: Sequence[Segment]) -> Batch:
        return self._between(max(self._start, group[0].base_offset), min(self._stop, group[-1].next_offset))

    # -- columns

    def to_arrow(
        self, *, views: bool = True, key: ColumnDeserializer = None, value: ColumnDeserializer = None
    ) -> pyarrow.RecordBatch:
        """Returns all records as a pyarrow.RecordBatch.

        Columns: offset (int64), timestamp (ms, UTC; null if there is none), timestamp_type (int8, as in `Record`), key
        and value (binary_view), headers (list of key: string_view, value: binary_view). Topic, partition and high
        watermark are in the schema's metadata. Bytes of header names that are not UTF-8 are replaced by U+FFFD.

        With `views`, no data is copied: keys and values of more than 12 bytes are views of the received or decompressed
        bytes, which live as long as the columns. Some libraries do not support these types, for example Spark, and
        `take` and `filter` of pyarrow. `views=False` copies the bytes once, into columns of types string and binary.

        `key` and `value` get the whole column and return its replacement of the same length. The deserializers of
        single records are not called. If one raises, this method raises `DeserializationError` with the first offset.
        Raises `CorruptRecordError` for bytes that do not decode, `OverflowError` if the record batches decompress to
        more than 1 GiB together (slice the batch then), and `MissingExtra` without `zk-partition-allocator[arrow]`.
        """
        columns, first, last = self._columns()
        pa = arrow.pyarrow()
        where = {"topic": self.topic, "partition": str(self.partition), "high_watermark": str(self.high_watermark)}
        schema = arrow.schema(views=views).with_metadata(where)
        arrays = [arrow.field(name, columns, first, last) for name in schema.names]
        if not views:
            arrays = [array if array.type == kind else array.cast(kind) for array, kind in zip(arrays, schema.types)]
        for name, function in (("key", key), ("value", value)):
            if function is not None:
                number = schema.get_field_index(name)
                arrays[number] = self._transformed(function, arrays[number], name)
                schema = schema.set(number, pa.field(name, arrays[number].type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns `to_arrow` as a DataFrame with two more columns: topic and partition.

        Keys and values are bytes objects. Raises `MissingExtra` without pandas and pyarrow.
        """
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise MissingExtra("DataFrames need pandas: pip install pandas 'zk-partition-allocator[arrow]'") from error
        frame = self.to_arrow(views=False).to_pandas()
        frame.insert(0, "topic", self.topic)
        frame.insert(1, "partition", self.partition)
        return frame

    @property
    def keys(self) -> pyarrow.Array:
        """The raw keys as in `to_arrow`, not copied."""
        return arrow.field("key", *self._columns())

    @property
    def values(self) -> pyarrow.Array:
        """The raw values as in `to_arrow`, not copied."""
        return arrow.field("value", *self._columns())

    def __repr__(self) -> str:
        return (
            f"<Batch {self.topic}:{self.partition} offsets {self.base_offset} to {self.next_offset - 1}, "
            f"{self.nbytes} bytes>"
        )

    # -- inside

    def _between(self, start: int, stop: int) -> Batch:
        other = Batch(
            self.topic,
            self.partition,
            self._found,
            start=start,
            high_watermark=self.high_watermark,
            key_deserializer=self._key_deserializer,
            value_deserializer=self._value_deserializer,
        )
        other._root = self if self._root is None and self._is_watched else self._root
        other._stop = max(start, stop)
        segments = self._found.segments
        # a record batch may hold a single record, so a response has thousands of segments
        other._first = _first_number(self._first, self._end, lambda number: segments[number].next_offset > start)
        other._end = _first_number(other._first, self._end, lambda number: segments[number].base_offset >= stop)
        return other

    @property
    def _is_watched(self) -> bool:
        return self._on_corrupt is not None or self._root is not None

    def _end_before(self, error: CorruptRecordError) -> bool:
        """Ends a watched batch before the record batch of `error`. Returns False if the batch raises the error: it is
        not watched, or has no record before that."""
        if not self._is_watched:
            return False
        segments = self._found.segments
        number = _first_number(0, len(segments), lambda number: segments[number].next_offset > error.offset)
        # the error of a compressed set in an old format has the offset of its last record
        at = min(segments[number].base_offset, error.offset)
        root = self if self._root is None else self._root
        has_records = self._lowest < at
        for each in {self, root}:
            each._shorten(at)
        assert root._on_corrupt is not None
        root._corrupt = error
        root._on_corrupt(max(at, root._start), error)
        return has_records

    def _end_iteration(self, error: CorruptRecordError) -> None:
        if not self._end_before(error):
            raise error

    def _follow_root(self) -> None:
        """Ends this part where the watched batch has ended meanwhile, because of another part. Raises that error if
        all its records are behind that."""
        root = self._root
        if root is not None and root._stop < self._stop and self._first < self._end:
            if root._corrupt is not None and root._stop <= self._lowest:
                raise root._corrupt.with_traceback(None)
            self._shorten(root._stop)

    def _shorten(self, stop: int) -> None:
        segments = self._found.segments
        self._stop = max(self._start, min(self._stop, stop))
        self._end = _first_number(self._first, self._end, lambda number: segments[number].base_offset >= stop)
        self._ends = None

    def _wire(self, segment: Segment, at: int) -> tuple[int, memoryview]:
        """Finds the v2 batch of `segment`, searching from `at`. Returns the position after it, and its bytes."""
        data = self._found.data
        while True:
            base, length = _OFFSET_LENGTH.unpack_from(data, at)
            end = at + _OFFSET_LENGTH.size + length
            if base == segment.base_offset and data[at + _MAGIC_AT] == 2:
                return end, memoryview(data)[at:end]
            at = end

    def _slice(self, index: slice) -> Batch:
        first, last, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"a batch can only be sliced in steps of 1, not {step}; iterate over it to skip records")
        try:
            start = self._offset_at(first) if first < len(self) else self._stop
            if last <= first:
                return self._between(start, start)
            return self._between(start, self._stop if last == len(self) else self._offset_at(last - 1) + 1)
        except CorruptRecordError as error:
            if not self._end_before(error):
                raise
        return self._slice(index)

    def _offset_at(self, index: int) -> int:
        number, within = self._locate(index)
        columns, first, _ = self._part(number)
        return columns.offset(first + within)

    def _locate(self, index: int) -> tuple[int, int]:
        """Returns the number of the segment with record `index`, and the index among its visible records."""
        ends = self._row_ends()
        number = bisect_right(ends, index)
        return self._first + number, index - (ends[number - 1] if number else 0)

    def _row_ends(self) -> list[int]:
        self._follow_root()
        while self._ends is None:
            try:
                self._ends = list(accumulate(self._counts()))
            except CorruptRecordError as error:
                if not self._end_before(error):
                    raise
        return self._ends

    def _counts(self) -> Iterator[int]:
        for number in range(self._first, self._end):
            segment = self._found.segments[number]
            if segment.count >= 0 and self._whole(segment):
                yield segment.count
            else:
                _, first, last = self._part(number)
                yield last - first

    def _whole(self, segment: Segment) -> bool:
        return segment.base_offset >= self._start and segment.next_offset <= self._stop

    def _part(self, number: int) -> tuple[Columns, int, int]:
        """Decodes one segment. Returns its columns, the first row of this batch and the row after its last."""
        last = self._last
        if last is not None and last[0] == number:
            columns = last[1]
        else:
            columns = self._found.columns(number, number + 1)
            self._last = (number, columns)
        return self._cut(columns, number, number + 1)

    def _columns(self) -> tuple[Columns | None, int, int]:
        """Like `_part`, for all segments."""
        self._follow_root()
        while self._first != self._end:
            try:
                return self._cut(self._found.columns(self._first, self._end), self._first, self._end)
            except CorruptRecordError as error:
                if not self._end_before(error):
                    raise
        return None, 0, 0

    def _cut(self, columns: Columns, first: int, end: int) -> tuple[Columns, int, int]:
        segments = self._found.segments
        low = 0 if segments[first].base_offset >= self._start else columns.find(self._start)
        high = len(columns) if segments[end - 1].next_offset <= self._stop else columns.find(self._stop)
        return columns, low, high

    def _transformed(self, function: Callable[[Any], Any], array: Any, part: str) -> Any:
        try:
            column = function(array)
            if len(column) != len(array):
                raise ValueError(f"{len(column)} values for {len(array)} records")
        except Exception as error:
            # user code may raise anything, and the error must name the batch
            raise DeserializationError(self.topic, self.partition, self.base_offset, part, error) from error
        return column

    def _is_raw(self) -> bool:
        return self._key_deserializer is None and self._value_deserializer is None

    def _deserialized(self, record: Record) -> Record:
        return deserialized(record, self._key_deserializer, self._value_deserializer)


def _first_number(low: int, high: int, reached: Callable[[int], bool]) -> int:
    """Returns the first number for which `reached` is true, or `high`. From that number on it is true."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle + 1, high)
    return low


def _short(value: Any) -> str:
    """Returns a key or value for a table: UTF-8 as text, other bytes as their repr."""
    if not isinstance(value, bytes):
        return "null" if value is None else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value[:200])


def deserialized(record: Record, key: Deserializer, value: Deserializer) -> Record:
    """Returns `record` with key and value deserialized. Raises DeserializationError."""
    return record.deserialized(_apply(key, record, "key"), _apply(value, record, "value"))


def _apply(deserializer: Deserializer, record: Record, part: str) -> Any:
    data = record.key if part == "key" else record.value
    if deserializer is None or data is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        # user code may raise anything, and the error must name the record
        raise DeserializationError(record.topic, record.partition, record.offset, part, error) from error
