# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: freethreading_compatible=True
"""The compiled decoder of record sets, the compiled `Record`, and the compiled encoder of record batches.

They promise the same as `core/fetch/decode_plain.py`, `record.py` and `producer/encoding.py`, which replace them if this
module was not built. `_records.h` and `_encode.h` walk the bytes, and release the interpreter's lock if there are many.
Memory that outlives a call is in `bytes` objects, and each view of it (a record, an Arrow buffer) keeps its object
alive. Threads may share records, columns and record sets. Only a `Record` changes, when it decodes an attribute: its
critical sections order these changes on an interpreter without a lock. One thread at a time may use an iterator.
"""

cimport cython
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

import heapq

from allocator.core.errors import CorruptRecordError, DecompressedTooLarge

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *mem, Py_ssize_t size, int flags)

cdef extern from "<time.h>" nogil:
    enum: TIME_UTC

    struct timespec:
        int64_t tv_sec
        long tv_nsec

    int timespec_get(timespec *now, int base)

cdef extern from "_records.h" nogil:
    enum: CONTROL, TRANSACTIONAL, LOG_OVERHEAD, V2_HEADER, V2_MIN_RECORD
    int crc_hardware

    ctypedef struct problem_t:
        const char *form
        int64_t a, b

    ctypedef struct segment_t:
        int64_t base_offset, next_offset, base_timestamp, append_time, producer
        int64_t start, end, size
        int32_t count, leader_epoch
        uint8_t magic, codec, attributes, has_append_time

    ctypedef struct view_t:
        int32_t length
        uint8_t prefix[4]
        int32_t buffer, position

    ctypedef struct columns_t:
        int64_t *offsets
        int64_t *timestamps
        view_t *keys
        view_t *values
        int32_t *headers
        uint8_t *key_bits
        uint8_t *value_bits
        int64_t null_keys, null_values, headered

    ctypedef struct header_t:
        int64_t name_at, name_size, value_at, value_size

    void crc_init()
    uint32_t crc32c_of(const uint8_t *p, size_t n, int hardware)
    int32_t be_int32(const uint8_t *p)
    int64_t be_int64(const uint8_t *p)
    int64_t scan_segments(const uint8_t *data, int64_t size, int64_t *at, int64_t *lowest, int hardware,
                          segment_t *out, int64_t most, problem_t *why)
    ctypedef struct job_t:
        const segment_t *segment
        const uint8_t *base
        int64_t start, end, shift, row, count
        int32_t buffer

    int64_t decode_jobs(const job_t *jobs, int64_t many, columns_t *out, problem_t *why)
    int64_t count_messages(const uint8_t *base, int64_t size, int64_t *first, int64_t *last, problem_t *why)
    int64_t headers_at(const uint8_t *base, int64_t size, int64_t *at)
    int64_t read_header(const uint8_t *base, int64_t size, int64_t at, header_t *out)
    int64_t put_headers(const uint8_t *base, int64_t size, int64_t at, int32_t buffer, view_t *names, view_t *values,
                        uint8_t *value_bits, int64_t row, int64_t *null_values)

cdef extern from "_encode.h" nogil:
    ctypedef struct body_t:
        int64_t base_time, max_time, size, count

    int64_t measure_rows(const columns_t *columns, const uint8_t *base, int64_t size, int64_t row, int64_t end,
                         int64_t target, body_t *body)
    uint8_t *write_rows(const columns_t *columns, const uint8_t *base, int64_t size, int64_t row, int64_t last,
                        uint8_t *p, const uint8_t *end, body_t *body)

    ctypedef struct arrow_bytes_t:
        const uint8_t *bits
        const void *ends
        const uint8_t *data
        int64_t first
        int wide

    ctypedef struct row_t:
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers
        int64_t key_size, value_size, headers_size

    int64_t row_size(const row_t *row, int64_t delta, int64_t index)
    uint8_t *put_row(const row_t *row, int64_t length, int64_t delta, int64_t index, uint8_t *p)
    int64_t arrow_row(const arrow_bytes_t *column, int64_t row, const uint8_t **data)
    int64_t put_arrow_rows(const arrow_bytes_t *keys, const arrow_bytes_t *values, const arrow_bytes_t *headers,
                           int64_t row, int64_t end, int64_t delta, int64_t index, int64_t target, uint8_t *p,
                           int64_t *size)
    uint32_t murmur2(const uint8_t *data, int64_t length)

cdef enum:
    CHUNK = 64
    # bytes of a row in the columns, without the bits that mark null keys and values
    ROW = 8 + 8 + 16 + 16 + 4
    # decoding fewer bytes takes less time than getting the interpreter's lock back from another thread
    RELEASE_FROM = 65536
    # PyBUF_WRITE, which the headers of the stable interface lack before 3.11
    TO_WRITE = 0x200
    # bytes that fit into a view itself
    WITHIN = 12
    KEY = 1
    VALUE = 2
    HEADERS = 4

crc_init()


def crc32c(bytes data not None, bint hardware=True):
    """Returns the CRC-32C of `data`, from tables if `hardware` is False or the processor has no instruction for it."""
    cdef const uint8_t *p = _start_of(data)
    cdef size_t size = len(data)
    cdef uint32_t crc
    with nogil:
        crc = crc32c_of(p, size, hardware and crc_hardware)
    return crc


cdef inline const uint8_t *_start_of(bytes data) except NULL:
    return <const uint8_t *>PyBytes_AsString(data)


cdef str _message(problem_t *why):
    return why.form.decode().format(why.a, why.b)


@cython.final
cdef class Room:
    """Memory to decompress into. It is not cleared, so unused memory costs nothing."""

    cdef bytes data
    cdef readonly object view

    def __cinit__(self, Py_ssize_t size):
        self.data = PyBytes_FromStringAndSize(NULL, size)
        self.view = PyMemoryView_FromMemory(PyBytes_AsString(self.data), size, TO_WRITE)

    def take(self, Py_ssize_t size):
        """Returns the first `size` bytes. Call it once."""
        if self.data is None:
            raise ValueError("the room was taken before")
        self.view.release()
        data, self.data = self.data, None
        # a copy, since Python's stable interface cannot cut it in place
        return data[:size]


@cython.final
@cython.freelist(64)
cdef class Segment:
    """One record batch on the wire, or a run of old messages, like `allocator.core.fetch.columns.Segment`."""

    cdef segment_t c

    @property
    def magic(self):
        return self.c.magic

    @property
    def codec(self):
        return self.c.codec

    @property
    def base_offset(self):
        return self.c.base_offset

    @property
    def next_offset(self):
        return self.c.next_offset

    @property
    def count(self):
        return self.c.count

    @property
    def size(self):
        return self.c.size

    @property
    def leader_epoch(self):
        return self.c.leader_epoch if self.c.leader_epoch >= 0 else None

    @property
    def timestamp_type(self):
        return self.c.has_append_time if self.c.magic else None


@cython.final
cdef class RecordSet:
    """The records of one partition in a fetch response, not decoded, like `allocator.core.fetch.decode_plain.RecordSet`."""

    cdef readonly str topic
    cdef readonly int partition
    cdef readonly bytes data
    cdef readonly list segments
    cdef readonly object next_offset, error, wanted
    cdef public object fence

    def columns(self, Py_ssize_t first, Py_ssize_t last):
        """Decodes the segments from `first` up to, not including, `last`. Raises `CorruptRecordError`."""
        return self._decode(self.segments[first:last])

    def records(self, Py_ssize_t first, Py_ssize_t last, start, stop, on_corrupt=None):
        """Iterates over the records of segments `first` to `last` - 1 with offsets from `start` to `stop` - 1.

        Decodes a segment when the iteration reaches it. At a corrupt one raises `CorruptRecordError`, on each further
        call too, so that no record is skipped silently. With `on_corrupt`, calls that with the error instead, and ends.
        """
        cdef _Records records = _Records.__new__(_Records)
        records.found = self
        records.segment = max(first, 0)
        records.segments_end = min(last, <Py_ssize_t>len(self.segments))
        records.start, records.stop, records.on_corrupt = start, stop, on_corrupt
        return records

    cdef Columns _decode(self, list segments):
        cdef Columns columns = Columns.__new__(Columns)
        cdef Py_ssize_t many = len(segments), number, plain = -1
        cdef Segment segment
        cdef job_t *job
        cdef bytes buffer
        cdef problem_t why
        cdef int64_t rows = 0, work = 0, held = 0, done
        columns.topic, columns.partition, columns.fence = self.topic, self.partition, self.fence
        columns.parts, columns.buffers = segments, []
        columns._make_jobs(many)
        for number in range(many):
            segment = segments[number]
            job = &columns.jobs[number]
            job.segment = &segment.c
            job.row, job.count, job.shift = rows, segment.c.count, 0
            if segment.c.codec:
                buffer = self._decompressed(segment)
                held += len(buffer)
                if many > 1:
                    _check_together(held)
                job.start, job.end = 0, len(buffer)
                job.buffer = <int32_t>len(columns.buffers)
                columns.buffers.append(buffer)
                self._check_count(segment, job, buffer)
            else:
                if plain < 0:
                    plain = len(columns.buffers)
                    columns.buffers.append(self.data)
                buffer = self.data
                job.start, job.end, job.buffer = segment.c.start, segment.c.end, <int32_t>plain
            job.base = _start_of(buffer)
            rows += job.count
            work += job.end - job.start
        columns._make_room(rows)
        if work < RELEASE_FROM:
            done = decode_jobs(columns.jobs, many, &columns.c, &why)
        else:
            with nogil:
                done = decode_jobs(columns.jobs, many, &columns.c, &why)
        if done < many:
            raise self._corrupt(segments[done], _message(&why))
        return columns

    cdef bytes _decompressed(self, Segment segment):
        # not at the top: `fetch` imports a module that imports this one
        from allocator.core.fetch.codecs import OutputTooLarge, decompress
        try:
            return decompress(
                segment.c.codec,
                memoryview(self.data)[segment.c.start:segment.c.end],
                magic=segment.c.magic,
                room=Room,
            )
        except ValueError as error:
            raise self._corrupt(segment, str(error), isinstance(error, OutputTooLarge)) from error

    cdef int _check_count(self, Segment segment, job_t *job, bytes buffer) except -1:
        """Counts the records of a decompressed batch or set, and checks that it can have as many as it says."""
        cdef const uint8_t *base = _start_of(buffer)
        cdef int64_t size = len(buffer), first = 0, last = 0, next_offset = segment.c.next_offset
        cdef problem_t why
        if segment.c.magic == 2:
            if job.count * V2_MIN_RECORD > size:
                raise self._corrupt(segment, f"{job.count} records in {size} bytes")
            return 0
        with nogil:
            job.count = count_messages(base, size, &first, &last, &why)
        if job.count < 0:
            raise self._corrupt(segment, _message(&why))
        if segment.c.magic:
            # the offsets inside are relative to that of the set, which is the last one (KIP-31)
            job.shift = next_offset - 1 - last
        if first + job.shift < 0 or last + job.shift >= next_offset:
            why_not = f"offsets {first + job.shift} to {last + job.shift} in a set that ends at {next_offset - 1}"
            raise self._corrupt(segment, why_not)
        return 0

    cdef object _corrupt(self, Segment segment, str why, bint too_large=False):
        # a compressed set of an old format has only its last offset outside
        cdef int64_t offset = segment.c.base_offset if segment.c.count >= 0 else segment.c.next_offset - 1
        kind = DecompressedTooLarge if too_large else CorruptRecordError
        return kind(self.topic, self.partition, offset, why, next_offset=segment.c.next_offset)


def scan(bytes data not None, *, str topic not None, int partition, int64_t start, aborted=()):
    """Finds the record batches of `data`, like `allocator.core.fetch.decode_plain.scan`."""
    cdef RecordSet found = RecordSet.__new__(RecordSet)
    cdef const uint8_t *p = _start_of(data)
    cdef int64_t size = len(data), pos = 0, floor = -1, before = -1, count = CHUNK, i
    cdef int64_t next_offset = start
    cdef segment_t chunk[CHUNK]
    cdef segment_t *c
    cdef problem_t why
    cdef Segment segment
    cdef str problem = None
    cdef bint visible
    # aborted transactions that have not started yet, by first offset, and producers with an open one
    cdef list waiting = [(first, producer) for producer, first in aborted]
    cdef set aborting = set()
    heapq.heapify(waiting)

    found.topic, found.partition, found.data = topic, partition, data
    found.segments = []
    while count == CHUNK and problem is None:
        before = floor
        if size < RELEASE_FROM:
            count = scan_segments(p, size, &pos, &floor, crc_hardware, chunk, CHUNK, &why)
        else:
            with nogil:
                count = scan_segments(p, size, &pos, &floor, crc_hardware, chunk, CHUNK, &why)
        if why.form is not NULL:
            problem = _message(&why)
        for i in range(count):
            c = &chunk[i]
            visible = not c.attributes & CONTROL
            if waiting or aborting:
                while waiting and waiting[0][0] < c.next_offset:
                    aborting.add(heapq.heappop(waiting)[1])
                if c.attributes & TRANSACTIONAL and c.producer in aborting:
                    visible = False
                if c.attributes & CONTROL and c.count and c.producer in aborting:
                    try:
                        if _aborts(found, c):
                            aborting.discard(c.producer)
                    except CorruptRecordError as error:
                        problem = f"a control record that does not decode ({error})"
                        pos = c.start - V2_HEADER
                        floor = chunk[i - 1].next_offset - 1 if i else before
                        break
            if c.next_offset <= start:
                continue
            next_offset = c.next_offset
            if visible and c.count:
                segment = Segment.__new__(Segment)
                segment.c = c[0]
                found.segments.append(segment)
    found.next_offset = next_offset
    if problem is not None:
        found.error = CorruptRecordError(
            topic, partition, max(next_offset, start), problem, next_offset=_after_bad(p, size, pos, max(floor, start))
        )
    elif pos == 0 and size:
        # as int64, since the length may be the largest int32
        found.wanted = LOG_OVERHEAD + <int64_t>be_int32(p + 8) if size >= LOG_OVERHEAD else 0
    return found


cdef int _check_together(int64_t held) except -1:
    # not at the top: `fetch` imports a module that imports this one
    from allocator.core.fetch.codecs import check_together
    check_together(held)
    return 0


cdef bint _aborts(RecordSet found, segment_t *c) except -1:
    """Returns whether a control batch aborts its producer's transaction."""
    cdef Segment segment = Segment.__new__(Segment)
    segment.c = c[0]
    key = found._decode([segment])._bytes(0, True)
    if key is None or len(key) < 4:
        raise CorruptRecordError(found.topic, found.partition, c.base_offset, "a key of less than 4 bytes")
    return key[2] == 0 and key[3] == 0


cdef object _after_bad(const uint8_t *p, int64_t size, int64_t pos, int64_t floor):
    """Returns where reading continues without skipping a record after the batch at `pos`, if its length is plausible."""
    cdef int64_t here = be_int64(p + pos), length = be_int32(p + pos + 8), there = INT64_MAX, least = max(here, floor)
    cdef int64_t following = pos + LOG_OVERHEAD + max(length, 0)
    cdef bint seen = length > 0 and following + LOG_OVERHEAD <= size
    if seen:
        there = be_int64(p + following)
        if there <= least:
            return None
        if following + 17 <= size and p[following + 16] == 2:
            return there
    elif here < 0 or length < 14 or size - pos < LOG_OVERHEAD + length:
        return None
    # Messages and sets of the old formats begin with their last offset, batches of v2 with their first. Two fields
    # tell how many offsets these have, and the damaged one may say too many
    after = int(here) + 1
    if p[pos + 16] == 2 and length >= 49:
        after = int(here) + max(1, min(<int64_t>be_int32(p + pos + 23) + 1, be_int32(p + pos + 57)))
    if least < after <= there:
        return after
    return int(least) + 1 if least < there else None


@cython.final
cdef class Columns:
    """The records of some segments, as columns in Arrow's layout.

    The views of keys and values point into `buffers`: the received record set and the decompressed batches.
    """

    cdef readonly str topic
    cdef readonly int partition
    cdef readonly list parts, buffers
    cdef readonly object fence
    # the segment and the rows of each part
    cdef bytes jobs_memory
    cdef job_t *jobs
    cdef readonly Py_ssize_t rows
    # of the first buffer
    cdef const char *base
    cdef readonly bytes memory
    cdef columns_t c

    cdef int _make_jobs(self, Py_ssize_t many) except -1:
        self.jobs_memory = PyBytes_FromStringAndSize(NULL, many * <Py_ssize_t>sizeof(job_t))
        self.jobs = <job_t *>PyBytes_AsString(self.jobs_memory)
        return 0

    cdef int _make_room(self, int64_t rows) except -1:
        cdef int64_t bits = (rows + 7) // 8
        cdef char *p
        if self.buffers:
            self.base = PyBytes_AsString(self.buffers[0])
        self.rows = rows
        self.memory = PyBytes_FromStringAndSize(NULL, rows * ROW + 2 * bits)
        p = PyBytes_AsString(self.memory)
        self.c.keys = <view_t *>p
        self.c.values = <view_t *>(p + 16 * rows)
        self.c.offsets = <int64_t *>(p + 32 * rows)
        self.c.timestamps = <int64_t *>(p + 40 * rows)
        self.c.headers = <int32_t *>(p + 48 * rows)
        self.c.key_bits = <uint8_t *>(p + ROW * rows)
        self.c.value_bits = self.c.key_bits + bits
        memset(self.c.key_bits, 0, 2 * bits)
        self.c.null_keys = self.c.null_values = self.c.headered = 0
        return 0

    def __len__(self):
        return self.rows

    def find(self, offset):
        """Returns the first row at `offset` or above; the number of rows if all are below."""
        cdef Py_ssize_t low = 0, high = self.rows, middle
        cdef int64_t wanted = min(max(offset, 0), INT64_MAX)
        while low < high:
            middle = (low + high) // 2
            if self.c.offsets[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def offset(self, Py_ssize_t row):
        """Returns the offset of one record."""
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return self.c.offsets[row]

    def records(self, Py_ssize_t first=0, last=None):
        """Returns the records of the rows from `first` up to, not including, `last`."""
        cdef _Records records = _Records.__new__(_Records)
        records.columns = self
        records.row = max(first, 0)
        records.last = self.rows if last is None else min(<Py_ssize_t>last, self.rows)
        return records

    @property
    def layout(self):
        """Returns (start, bytes) of keys, values, offsets, timestamps, key bits and value bits, all in one memory."""
        cdef Py_ssize_t n = self.rows, bits = (self.rows + 7) // 8
        return (
            (0, 16 * n), (16 * n, 16 * n), (32 * n, 8 * n), (40 * n, 8 * n), (ROW * n, bits), (ROW * n + bits, bits)
        )

    @property
    def null_keys(self):
        return self.c.null_keys

    @property
    def null_values(self):
        return self.c.null_values

    @property
    def untimed(self):
        """Returns the number of records without a timestamp, which is -1."""
        cdef Py_ssize_t row, count = 0
        for row in range(self.rows):
            count += self.c.timestamps[row] == -1
        return count

    @property
    def timestamp_types(self):
        """Returns (timestamp type, rows) of each part."""
        return [(part.timestamp_type, self.jobs[number].count) for number, part in enumerate(self.parts)]

    def header_columns(self):
        """Returns None if no record has headers.

        Else returns the ends of the rows as int32, the number of headers, the views of names and of values, the bits of
        values that are not null, and the number of null values. All but the numbers are `bytes`.
        """
        if not self.c.headered:
            return None
        cdef bytes ends = PyBytes_FromStringAndSize(NULL, 4 * (self.rows + 1))
        cdef int32_t *end_of = <int32_t *>PyBytes_AsString(ends)
        cdef Py_ssize_t row, part = -1, part_end = 0
        cdef const uint8_t *base = NULL
        cdef int64_t size = 0, total = 0, at, nulls = 0
        cdef int32_t place = 0
        cdef bytes names = b"", values = b"", bits = b"", buffer
        cdef view_t *name_views = NULL
        cdef view_t *value_views = NULL
        cdef uint8_t *value_bits = NULL
        for filling in range(2):
            part, part_end = -1, 0
            if filling:
                if total > 0x7FFFFFFF:
                    raise OverflowError(f"{total} headers in one batch; slice it")
                names = PyBytes_FromStringAndSize(NULL, 16 * total)
                values = PyBytes_FromStringAndSize(NULL, 16 * total)
                bits = bytes((total + 7) // 8)
                name_views = <view_t *>PyBytes_AsString(names)
                value_views = <view_t *>PyBytes_AsString(values)
                value_bits = <uint8_t *>PyBytes_AsString(bits)
                total = 0
                end_of[0] = 0
            for row in range(self.rows):
                while row >= part_end:
                    part += 1
                    part_end += self.jobs[part].count
                    place = self.jobs[part].buffer
                    buffer = self.buffers[place]
                    base, size = _start_of(buffer), len(buffer)
                if self.c.headers[row]:
                    at = self.c.headers[row]
                    if filling:
                        total = put_headers(base, size, at, place, name_views, value_views, value_bits, total, &nulls)
                    else:
                        total += headers_at(base, size, &at)
                if filling:
                    end_of[row + 1] = <int32_t>total
        return ends, total, names, values, bits, nulls

    cdef bytes _bytes(self, Py_ssize_t row, bint key):
        """Returns the key or value of a row; None if it is null."""
        cdef view_t *view = &(self.c.keys if key else self.c.values)[row]
        cdef uint8_t *bits = self.c.key_bits if key else self.c.value_bits
        if not bits[row >> 3] >> (row & 7) & 1:
            return None
        if view.length <= WITHIN:
            return PyBytes_FromStringAndSize(<char *>view.prefix, view.length)
        cdef const char *base = self.base if view.buffer == 0 else PyBytes_AsString(self.buffers[view.buffer])
        return PyBytes_FromStringAndSize(base + view.position, view.length)

    cdef int _give_size(self, view_t *view, uint8_t *bits, object part, object size) except -1:
        """Sets the size of a key or value that is not in these columns."""
        if size is None:
            size = len(part) if isinstance(part, bytes) else -1
        bits[0] = size >= 0
        view.length = size
        return 0

    cdef Py_ssize_t _size(self, Py_ssize_t row, bint key):
        cdef uint8_t *bits = self.c.key_bits if key else self.c.value_bits
        if not bits[row >> 3] >> (row & 7) & 1:
            return -1
        return (self.c.keys if key else self.c.values)[row].length

    cdef list _headers(self, Py_ssize_t row):
        cdef list headers = []
        cdef header_t header
        cdef bytes buffer
        cdef const uint8_t *base
        cdef int64_t at = self.c.headers[row], size
        if not at:
            return headers
        buffer = self.buffers[self.jobs[self._part(row)].buffer]
        base, size = _start_of(buffer), len(buffer)
        for _ in range(headers_at(base, size, &at)):
            at = read_header(base, size, at, &header)
            name = (<char *>base)[header.name_at:header.name_at + header.name_size]
            value = None
            if header.value_size >= 0:
                value = (<char *>base)[header.value_at:header.value_at + header.value_size]
            headers.append((name.decode("utf-8", "surrogateescape"), value))
        return headers

    cdef Py_ssize_t _part(self, Py_ssize_t row):
        cdef Py_ssize_t low = 0, high = len(self.parts), middle
        while high - low > 1:
            middle = (low + high) // 2
            if self.jobs[middle].row <= row:
                low = middle
            else:
                high = middle
        return low

    cdef Segment _segment(self, Py_ssize_t row):
        return self.parts[self._part(row)]


@cython.final
cdef class _Records:
    """Iterates over `Record` objects."""

    cdef Columns columns
    cdef Py_ssize_t row, last
    # source of the columns that follow, if any
    cdef RecordSet found
    cdef Py_ssize_t segment, segments_end
    cdef object start, stop, on_corrupt
    # whether a thread decodes or encodes, which releases the interpreter's lock and all critical sections
    cdef bint busy

    def __iter__(self):
        return self

    cdef int _begin(self) except -1:
        # otherwise a second thread would decode the same segment, and both would skip the next one
        if self.busy:
            raise ValueError("another thread reads from this iterator; use one iterator for each thread")
        self.busy = True
        return 0

    cdef int _go_on(self) except -1:
        """Moves to the next segment, and drops the last one."""
        if self.segment >= self.segments_end:
            raise StopIteration
        cdef Segment segment = self.found.segments[self.segment]
        self.columns = None
        cdef Columns columns = self.found._decode([segment])
        self.row = 0 if segment.c.base_offset >= self.start else columns.find(self.start)
        self.last = columns.rows if segment.c.next_offset <= self.stop else columns.find(self.stop)
        self.columns = columns
        self.segment += 1
        return 0

    def __next__(self):
        # before the row is chosen: creating an object may let another thread run, which would take that row
        cdef Record record = Record.__new__(Record)
        with cython.critical_section(self):
            # another thread uses the rows
            if self.busy or self.row >= self.last:
                self._begin()
                try:
                    while self.row >= self.last:
                        self._go_on()
                except CorruptRecordError as error:
                    if self.on_corrupt is None:
                        raise
                    self.segment = self.segments_end
                    self.on_corrupt(error)
                    raise StopIteration from None
                finally:
                    self.busy = False
            record._columns = self.columns
            record._row = self.row
            self.row += 1
        return record

    def write(self, int64_t target):
        """Encodes the next records of a v2 batch, like `allocator.producer.encoding.Writer.write`."""
        with cython.critical_section(self):
            self._begin()
            try:
                return self._write(target)
            finally:
                self.busy = False

    cdef object _write(self, int64_t target):
        cdef Columns columns
        cdef job_t *job
        cdef body_t body
        cdef list pieces = [], runs = []
        cdef int64_t row, end, stop, before, expected = -1
        memset(&body, 0, sizeof(body_t))
        while body.size < target:
            if self.row >= self.last:
                if self.segment >= self.segments_end:
                    break
                try:
                    self._go_on()
                except CorruptRecordError:
                    if body.count:
                        break
                    raise
                continue
            columns, row, before = self.columns, self.row, body.count
            job = &columns.jobs[columns._part(row)]
            stop = min(<int64_t>self.last, job.row + job.count)
            if job.end - job.start < RELEASE_FROM:
                end = measure_rows(&columns.c, job.base, job.end, row, stop, target, &body)
            else:
                with nogil:
                    end = measure_rows(&columns.c, job.base, job.end, row, stop, target, &body)
            pieces.append((columns, row, end))
            for row in range(row, end):
                if columns.c.offsets[row] != expected:
                    runs.append((columns.c.offsets[row], before))
                expected = columns.c.offsets[row] + 1
                before += 1
            self.row = end
            if end < stop:
                break
        if not body.count:
            return None
        return _written(pieces, &body), body.count, body.base_time, body.max_time, runs, expected


cdef bytes _written(list pieces, body_t *body):
    """Writes the measured rows. Each of `pieces` has rows within one part of its columns."""
    cdef bytes made = PyBytes_FromStringAndSize(NULL, body.size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AsString(made)
    cdef const uint8_t *memory_end = p + body.size
    cdef Columns columns
    cdef job_t *job
    cdef int64_t row, end
    cdef body_t done = body[0]
    done.count = 0
    for piece in pieces:
        columns, row, end = piece
        job = &columns.jobs[columns._part(row)]
        if job.end - job.start < RELEASE_FROM:
            p = write_rows(&columns.c, job.base, job.end, row, end, p, memory_end, &done)
        else:
            with nogil:
                p = write_rows(&columns.c, job.base, job.end, row, end, p, memory_end, &done)
    assert p == memory_end
    return made


cdef void _set_column(object buffers, arrow_bytes_t *column) except *:
    """`buffers`: addresses of Arrow's three buffers, first row, whether ends have 64 bits. None: all rows are null."""
    memset(column, 0, sizeof(arrow_bytes_t))
    if buffers is None:
        return
    bits, ends, data, first, wide = buffers
    column.bits = <const uint8_t *><size_t>bits
    column.ends = <const void *><size_t>ends
    column.data = <const uint8_t *><size_t>data
    column.first = first
    column.wide = wide


@cython.final
cdef class Rows:
    """Records of one batch of v2, encoded one after the other, like `allocator.producer.encoding.PlainRows`.

    One thread at a time may use it.
    """

    cdef uint8_t *data
    cdef int64_t *all_times
    cdef int64_t room, times_room
    cdef readonly int64_t size, count, base_time, max_time

    def __dealloc__(self):
        free(self.data)
        free(self.all_times)

    cdef uint8_t *_room_for(self, int64_t more) except NULL:
        """Returns where to write so many bytes."""
        cdef uint8_t *data
        if self.size + more > self.room:
            self.room = max(2 * self.room, self.size + more, 1024)
            data = <uint8_t *>realloc(self.data, <size_t>self.room)
            if data is NULL:
                raise MemoryError
            self.data = data
        return self.data + self.size

    cdef int _add(self, int64_t count, int64_t size, int64_t timestamp) except -1:
        """Adds so many records of one time, which are written."""
        cdef int64_t row
        cdef int64_t *times
        if self.count + count > self.times_room:
            self.times_room = max(2 * self.times_room, self.count + count, 64)
            times = <int64_t *>realloc(self.all_times, <size_t>self.times_room * sizeof(int64_t))
            if times is NULL:
                self.times_room = self.count
                raise MemoryError
            self.all_times = times
        for row in range(self.count, self.count + count):
            self.all_times[row] = timestamp
        if not self.count:
            self.base_time = self.max_time = timestamp
        elif timestamp > self.max_time:
            self.max_time = timestamp
        self.count += count
        self.size += size
        return 0

    def times(self):
        return [self.all_times[row] for row in range(self.count)]

    def append(self, bytes key, bytes value, bytes headers, object timestamp):
        cdef timespec now
        cdef int64_t time
        if timestamp is None:
            timespec_get(&now, TIME_UTC)
            time = now.tv_sec * 1000 + now.tv_nsec // 1_000_000
        else:
            time = timestamp
        cdef int64_t delta = time - self.base_time if self.count else 0
        cdef row_t row
        row.key_size = row.value_size = row.headers_size = -1
        if key is not None:
            row.key, row.key_size = _start_of(key), len(key)
        if value is not None:
            row.value, row.value_size = _start_of(value), len(value)
        if headers is not None:
            row.headers, row.headers_size = _start_of(headers), len(headers)
        cdef int64_t length = row_size(&row, delta, self.count)
        cdef uint8_t *p = self._room_for(length + 10)
        self._add(1, put_row(&row, length, delta, self.count, p) - p, time)
        return self.size

    def append_rows(
        self, list keys, list values not None, bytes headers, int64_t first, int64_t end, int64_t timestamp,
        int64_t target
    ):
        cdef int64_t delta = timestamp - self.base_time if self.count else 0
        cdef int64_t size = 0, count = 0, at = first, length
        cdef bytes key, value
        cdef uint8_t *p
        cdef row_t row
        if first < 0 or end > len(values) or (keys is not None and end > len(keys)):
            raise IndexError(f"rows {first} to {end} of {len(values)}")
        row.key_size = row.headers_size = -1
        if headers is not None:
            row.headers, row.headers_size = _start_of(headers), len(headers)
        while at < end and self.size + size < target:
            value = values[at]
            row.value_size = -1
            if value is not None:
                row.value, row.value_size = _start_of(value), len(value)
            if keys is not None:
                key = keys[at]
                row.key_size = -1
                if key is not None:
                    row.key, row.key_size = _start_of(key), len(key)
            length = row_size(&row, delta, self.count + count)
            p = self._room_for(size + length + 10) + size
            size += put_row(&row, length, delta, self.count + count, p) - p
            count += 1
            at += 1
        self._add(count, size, timestamp)  # now, so that a wrong type adds nothing
        return at

    def append_columns(
        self, object keys, object values, object headers, int64_t first, int64_t end, int64_t timestamp, int64_t target
    ):
        """Adds rows of Arrow columns until the size is `target`. Returns the next row; see `put_arrow_rows`.

        The caller keeps the columns alive. `producer.columns` has their addresses.
        """
        cdef arrow_bytes_t key_column, value_column, header_column
        cdef int64_t size = 0, after, delta
        cdef uint8_t *p
        _set_column(keys, &key_column)
        _set_column(values, &value_column)
        _set_column(headers, &header_column)
        delta, target = timestamp - self.base_time if self.count else 0, target - self.size
        with nogil:
            after = put_arrow_rows(
                &key_column, &value_column, &header_column, first, end, delta, self.count, target, NULL, &size
            )
        p = self._room_for(size)
        with nogil:
            put_arrow_rows(
                &key_column, &value_column, &header_column, first, after, delta, self.count, INT64_MAX, p, &size
            )
        self._add(after - first, size, timestamp)
        return after

    def take(self):
        cdef bytes made = PyBytes_FromStringAndSize(<char *>self.data, self.size)
        free(self.data)
        self.data, self.room = NULL, 0
        return made


def hash_key(bytes key not None):
    """Returns the same as `producer.partitioner.murmur2`."""
    return murmur2(_start_of(key), len(key))


def hash_rows(object keys, int64_t rows, int32_t partitions, int64_t keyless, int64_t run):
    """Returns the partition of each row by its key, as int32; see `producer.columns.by_partition`."""
    cdef arrow_bytes_t column
    cdef const uint8_t *data = NULL
    cdef int64_t row, length
    cdef bytes made = PyBytes_FromStringAndSize(NULL, rows * 4)
    cdef int32_t *out = <int32_t *>PyBytes_AsString(made)
    _set_column(keys, &column)
    with nogil:
        for row in range(rows):
            length = arrow_row(&column, row, &data)
            if length < 0:
                out[row] = <int32_t>(keyless // run % partitions)
                keyless += 1
            else:
                out[row] = <int32_t>((murmur2(data, length) & 0x7FFFFFFF) % <uint32_t>partitions)
    return made, keyless


@cython.final
@cython.freelist(256)
cdef class Record:
    """One record, which decodes its attributes on first use, like `allocator.core.record.PlainRecord`."""

    cdef Columns _columns
    cdef Py_ssize_t _row
    cdef object _key, _value, _headers
    # which of these three are decoded
    cdef int _known

    def __init__(
        self, topic, partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch=None,
        fence=None, serialized_key_size=None, serialized_value_size=None
    ):
        cdef Columns columns = Columns.__new__(Columns)
        cdef Segment segment = Segment.__new__(Segment)
        memset(&segment.c, 0, sizeof(segment_t))
        segment.c.magic = timestamp_type is not None
        segment.c.has_append_time = bool(timestamp_type)
        segment.c.leader_epoch = -1 if leader_epoch is None else leader_epoch
        columns.topic, columns.partition, columns.fence = topic, partition, fence
        columns.parts, columns.buffers = [segment], []
        columns._make_jobs(1)
        columns.jobs[0].row, columns.jobs[0].count = 0, 1
        columns._make_room(1)
        columns.c.offsets[0], columns.c.timestamps[0] = offset, timestamp
        columns._give_size(columns.c.keys, columns.c.key_bits, key, serialized_key_size)
        columns._give_size(columns.c.values, columns.c.value_bits, value, serialized_value_size)
        self._columns, self._row = columns, 0
        self._key, self._value, self._headers = key, value, headers
        self._known = KEY | VALUE | HEADERS

    @property
    def topic(self):
        return self._columns.topic

    @property
    def partition(self):
        return self._columns.partition

    @property
    def offset(self):
        return self._columns.c.offsets[self._row]

    @property
    def timestamp(self):
        return self._columns.c.timestamps[self._row]

    @property
    def timestamp_type(self):
        return self._columns._segment(self._row).timestamp_type

    @property
    def leader_epoch(self):
        return self._columns._segment(self._row).leader_epoch

    @property
    def fence(self):
        return self._columns.fence

    @property
    def key(self):
        with cython.critical_section(self):
            if not self._known & KEY:
                key = self._columns._bytes(self._row, True)
                if not self._known & KEY:
                    self._key = key
                    self._known |= KEY
            return self._key

    @property
    def value(self):
        with cython.critical_section(self):
            if not self._known & VALUE:
                value = self._columns._bytes(self._row, False)
                if not self._known & VALUE:
                    self._value = value
                    self._known |= VALUE
            return self._value

    @property
    def headers(self):
        with cython.critical_section(self):
            if not self._known & HEADERS:
                headers = self._columns._headers(self._row)
                if not self._known & HEADERS:
                    self._headers = headers
                    self._known |= HEADERS
            return self._headers

    @property
    def serialized_key_size(self):
        return self._columns._size(self._row, True)

    @property
    def serialized_value_size(self):
        return self._columns._size(self._row, False)

    @property
    def checksum(self):
        return None

    def deserialized(self, key, value):
        with cython.critical_section(self):
            self._key, self._value = key, value
            self._known |= KEY | VALUE
        return self

    def _fields(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.timestamp_type, self.key, self.value,
            self.headers, self.leader_epoch,
        )

    def __eq__(self, other):
        return self._fields() == other._fields() if isinstance(other, Record) else NotImplemented

    __hash__ = None

    def __reduce__(self):
        return Record, (*self._fields(), self.fence, self.serialized_key_size, self.serialized_value_size)

    def __repr__(self):
        topic, partition, offset, timestamp, kind, key, value, headers, epoch = self._fields()
        return (
            f"Record(topic={topic!r}, partition={partition}, offset={offset}, timestamp={timestamp}, "
            f"timestamp_type={kind}, key={key!r}, value={value!r}, headers={headers!r}, leader_epoch={epoch})"
        )
