"""Converts decoded columns to pyarrow arrays. Imports pyarrow on first use.

The arrays share the memory of the compiled decoder, and keep it alive. The columns of the plain decoder are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from allocator.core.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

    from allocator.core.fetch.decode import Columns

# the first pyarrow version that can build view arrays from several buffers
OLDEST = 19
FIELDS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")


@cache
def pyarrow() -> Any:
    """Imports and returns pyarrow. Raises `MissingExtra`."""
    needed = f"Arrow columns need pyarrow {OLDEST} or newer: pip install 'zk-partition-allocator[arrow]'"
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra(needed) from error
    if int(pyarrow.__version__.split(".")[0]) < OLDEST:
        raise MissingExtra(f"{needed}; {pyarrow.__version__} is installed")
    return pyarrow


@cache
def schema(*, views: bool = True) -> pa.Schema:
    """Returns the schema of `Batch.to_arrow`."""
    pa = pyarrow()
    binary, string = (pa.binary_view(), pa.string_view()) if views else (pa.binary(), pa.string())
    header = pa.struct([pa.field("key", string, nullable=False), pa.field("value", binary)])
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
            pa.field("timestamp_type", pa.int8()),
            pa.field("key", binary),
            pa.field("value", binary),
            pa.field("headers", pa.list_(pa.field("item", header, nullable=False)), nullable=False),
        ]
    )


def field(name: str, columns: Columns | None, first: int, last: int) -> pa.Array:
    """Returns one column with the rows from `first` up to, not including, `last`; no rows if `columns` is None."""
    if columns is None:
        return _none_of(schema().field(name).type)
    array = _MAKERS[name](columns)
    return array if first == 0 and last == len(columns) else array.slice(first, last - first)


def _int64(columns: Any, name: str, number: int) -> pa.Array:
    """Returns the attribute `name` of all parts. `number`: the compiled decoder's buffer with it."""
    pa = pyarrow()
    if _compiled(columns):
        return pa.Array.from_buffers(pa.int64(), len(columns), [None, _buffer(columns, number)], null_count=0)
    return pa.array([each for part in columns.parts for each in getattr(part, name)], pa.int64())


def _timestamps(columns: Any) -> pa.Array:
    times = _int64(columns, "timestamps", 3)
    if getattr(columns, "untimed", True):
        from pyarrow import compute

        times = compute.if_else(compute.equal(times, -1), None, times)
    return times.view(schema().field("timestamp").type)


def _timestamp_types(columns: Any) -> pa.Array:
    pa = pyarrow()
    arrays = []
    for kind, group in groupby(columns.timestamp_types, itemgetter(0)):
        rows = sum(rows for _, rows in group)
        if kind is None:
            arrays.append(pa.nulls(rows, pa.int8()))
        else:
            arrays.append(pa.Array.from_buffers(pa.int8(), rows, [None, pa.py_buffer(bytes((kind,)) * rows)], 0))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _bytes(columns: Any, name: str, views: int, bits: int) -> pa.Array:
    """Returns the keys or values. `views`, `bits`: the compiled decoder's buffers with views and validity."""
    pa = pyarrow()
    if not _compiled(columns):
        return pa.array(
            [getattr(part, name)(row) for part in columns.parts for row in range(len(part))], pa.binary_view()
        )
    nulls = getattr(columns, f"null_{name}s")
    buffers = [
        _buffer(columns, bits) if nulls else None,
        _buffer(columns, views),
        *(pa.py_buffer(buffer) for buffer in columns.buffers),
    ]
    return pa.Array.from_buffers(pa.binary_view(), len(columns), buffers, nulls)


def _headers(columns: Any) -> pa.Array:
    pa = pyarrow()
    kind = schema().field("headers").type
    rows = len(columns)
    if not _compiled(columns):
        return pa.array(
            [
                [{"key": _text(name), "value": value} for name, value in part.headers(row)]
                for part in columns.parts
                for row in range(len(part))
            ],
            kind,
        )
    found = columns.header_columns()
    if found is None:
        ends = pa.py_buffer(bytes(4 * (rows + 1)))
        return pa.Array.from_buffers(kind, rows, [None, ends], 0, children=[_none_of(kind.value_type)])
    ends, count, name_views, value_views, value_bits, nulls = found
    data = [pa.py_buffer(buffer) for buffer in columns.buffers]
    names = pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(name_views), *data], 0)
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        # a text column cannot hold names that are not UTF-8
        raw = names.view(pa.binary_view()).to_pylist()
        names = pa.array([name.decode("utf-8", "replace") for name in raw], pa.string_view())
    present = pa.py_buffer(value_bits) if nulls else None
    values = pa.Array.from_buffers(pa.binary_view(), count, [present, pa.py_buffer(value_views), *data], nulls)
    items = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(ends)], 0, children=[items])


_offsets = partial(_int64, name="offsets", number=2)
_keys = partial(_bytes, name="key", views=0, bits=4)
_values = partial(_bytes, name="value", views=1, bits=5)
_MAKERS: dict[str, Callable[[Any], Any]] = dict(
    zip(FIELDS, (_offsets, _timestamps, _timestamp_types, _keys, _values, _headers))
)


def _none_of(kind: pa.DataType) -> pa.Array:
    # pa.array([]) would import an installed pandas, which takes half a second
    return pyarrow().nulls(0, kind)


def _text(name: str) -> str:
    """Replaces bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _compiled(columns: Any) -> bool:
    return hasattr(columns, "memory")


def _buffer(columns: Any, number: int) -> pa.Buffer:
    start, size = columns.layout[number]
    return pyarrow().py_buffer(columns.memory).slice(start, size)
