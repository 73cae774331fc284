/* Encodes rows of columns, those of `_records.h` or Arrow's, as records of a v2 batch. No code here uses Python.
 *
 * Format: https://kafka.apache.org/documentation/#record. `producer/encoding.py` does the same in Python, under the
 * same tests. A first pass over the rows measures their bytes, so that the caller allocates exactly as much, and a second
 * one writes them.
 */
#ifndef ALLOCATOR_ENCODE_H
#define ALLOCATOR_ENCODE_H

#include "_records.h"

/* A batch that is being measured or written: values for its header, and the bytes after it. */
typedef struct {
    int64_t base_time, max_time, size, count;
} body_t;

INLINE uint64_t zigzag(int64_t n) { return (uint64_t)n << 1 ^ (uint64_t)(n >> 63); }

INLINE int64_t varint_size(uint64_t n)
{
#if defined(__GNUC__) || defined(__clang__)
    return (70 - __builtin_clzll(n | 1)) / 7;
#else
    int64_t size = 1;
    while (n >>= 7)
        size++;
    return size;
#endif
}

INLINE uint8_t *put_varint(uint8_t *p, uint64_t n)
{
    for (; UNLIKELY(n > 0x7F); n >>= 7)
        *p++ = (uint8_t)(n | 0x80);
    *p++ = (uint8_t)n;
    return p;
}

/* Returns the bytes of a key or value with its length; the length -1 of null takes one byte. */
INLINE int64_t field_size(const view_t *view, const uint8_t *bits, int64_t row)
{
    if (UNLIKELY(!(bits[row >> 3] >> (row & 7) & 1)))
        return 1;
    return varint_size((uint64_t)view->length << 1) + view->length;
}

INLINE uint8_t *put_field(uint8_t *p, const view_t *view, const uint8_t *bits, int64_t row, const uint8_t *base,
                          const uint8_t *end)
{
    if (UNLIKELY(!(bits[row >> 3] >> (row & 7) & 1))) {
        *p = 1;
        return p + 1;
    }
    const size_t size = (size_t)view->length;
    p = put_varint(p, (uint64_t)size << 1);
    if (size > 12)
        memcpy(p, base + view->position, size);
    else if (LIKELY(end - p >= 12))
        memcpy(p, view->prefix, 12); /* excess bytes are overwritten later: copying an unknown size is a function call */
    else
        memcpy(p, view->prefix, size);
    return p + size;
}

/* Returns the end of the checked headers at `at`. */
static int64_t headers_end(const uint8_t *base, int64_t size, int64_t at)
{
    header_t header;
    for (int64_t count = headers_at(base, size, &at); count > 0; count--)
        at = read_header(base, size, at, &header);
    return at;
}

/* Returns the bytes of a record after its length. Headers are copied as they are. */
INLINE int64_t record_size(const columns_t *columns, const uint8_t *base, int64_t size, int64_t row, int64_t delta,
                           int64_t index)
{
    const int64_t headers = columns->headers[row];
    return 1 + varint_size(zigzag(delta)) + varint_size((uint64_t)index << 1) +
           field_size(&columns->keys[row], columns->key_bits, row) +
           field_size(&columns->values[row], columns->value_bits, row) +
           (LIKELY(!headers) ? 1 : headers_end(base, size, headers) - headers);
}

/* Measures rows from `row` up to `end`, views of the `size` bytes at `base`, into `body`. Stops when it has `target`
 * bytes, and at a time too far from the first one for 64 bits. Returns the next row. */
static int64_t measure_rows(const columns_t *columns, const uint8_t *base, int64_t size, int64_t row, int64_t end,
                            int64_t target, body_t *body)
{
    for (; row < end && body->size < target; row++) {
        const int64_t time = columns->timestamps[row];
        if (!body->count)
            body->base_time = body->max_time = time;
        const int64_t delta = minus(time, body->base_time);
        if (UNLIKELY((delta < 0) != (time < body->base_time)))
            break;
        if (time > body->max_time)
            body->max_time = time;
        const int64_t length = record_size(columns, base, size, row, delta, body->count);
        body->size += length + varint_size((uint64_t)length << 1);
        body->count++;
    }
    return row;
}

/* Writes measured rows to `p`, in memory up to `end`. `body` has the times, and in `count` the number of written records.
 * Returns the position after them. */
static uint8_t *write_rows(const columns_t *columns, const uint8_t *base, int64_t size, int64_t row, int64_t last,
                           uint8_t *p, const uint8_t *end, body_t *body)
{
    for (; row < last; row++, body->count++) {
        const int64_t delta = minus(columns->timestamps[row], body->base_time), headers = columns->headers[row];
        p = put_varint(p, (uint64_t)record_size(columns, base, size, row, delta, body->count) << 1);
        *p++ = 0; /* the attributes, which are unused */
        p = put_varint(p, zigzag(delta));
        p = put_varint(p, (uint64_t)body->count << 1);
        p = put_field(p, &columns->keys[row], columns->key_bits, row, base, end);
        p = put_field(p, &columns->values[row], columns->value_bits, row, base, end);
        if (LIKELY(!headers)) {
            *p++ = 0;
        } else {
            const size_t bytes = (size_t)(headers_end(base, size, headers) - headers);
            memcpy(p, base + headers, bytes);
            p += bytes;
        }
    }
    return p;
}

/* Keys or values in Arrow's layout for bytes: row r is from ends[first + r] to ends[first + r + 1]. */
typedef struct {
    const uint8_t *bits; /* bit 0: the row is null; NULL: no row is null */
    const void *ends;    /* NULL: all rows are null */
    const uint8_t *data;
    int64_t first;
    int wide; /* ends of 64 bits */
} arrow_bytes_t;

/* Returns the length of a row, -1 if it is null, and sets `data` to its bytes. */
INLINE int64_t arrow_row(const arrow_bytes_t *column, int64_t row, const uint8_t **data)
{
    row += column->first;
    if (!column->ends || (column->bits && !(column->bits[row >> 3] >> (row & 7) & 1)))
        return -1;
    const int64_t from = column->wide ? ((const int64_t *)column->ends)[row] : ((const int32_t *)column->ends)[row];
    const int64_t to = column->wide ? ((const int64_t *)column->ends)[row + 1] : ((const int32_t *)column->ends)[row + 1];
    *data = column->data + from;
    return to - from;
}

INLINE int64_t bytes_size(int64_t length) { return length < 0 ? 1 : varint_size((uint64_t)length << 1) + length; }

INLINE uint8_t *put_bytes(uint8_t *p, const uint8_t *data, int64_t length)
{
    p = put_varint(p, zigzag(length));
    if (length > 0)
        memcpy(p, data, (size_t)length);
    return p + (length > 0 ? length : 0);
}

/* A record without its time. A size of -1 is null, or no headers. `headers` are encoded already. */
typedef struct {
    const uint8_t *key, *value, *headers;
    int64_t key_size, value_size, headers_size;
} row_t;

/* Returns the bytes of record number `index` of its batch after its length. `delta` is its time after the batch's
 * first. */
INLINE int64_t row_size(const row_t *row, int64_t delta, int64_t index)
{
    return 1 + varint_size(zigzag(delta)) + varint_size((uint64_t)index << 1) + bytes_size(row->key_size) +
           bytes_size(row->value_size) + (row->headers_size < 0 ? 1 : row->headers_size);
}

/* Writes a record whose `row_size` is `length`, with up to ten bytes more for the length. Returns the position after it. */
INLINE uint8_t *put_row(const row_t *row, int64_t length, int64_t delta, int64_t index, uint8_t *p)
{
    p = put_varint(p, (uint64_t)length << 1);
    *p++ = 0; /* the attributes, which are unused */
    p = put_varint(p, zigzag(delta));
    p = put_varint(p, (uint64_t)index << 1);
    p = put_bytes(p, row->key, row->key_size);
    p = put_bytes(p, row->value, row->value_size);
    if (row->headers_size < 0) {
        *p++ = 0;
    } else {
        memcpy(p, row->headers, (size_t)row->headers_size);
        p += row->headers_size;
    }
    return p;
}

/* Writes rows from `row` up to `end`, all of one time, as records. The first row is number `index` of its batch. With
 * `p` NULL only measures them. Stops after the row with which `size` reaches `target`. Returns the next row. */
static int64_t put_arrow_rows(const arrow_bytes_t *keys, const arrow_bytes_t *values, const arrow_bytes_t *headers,
                              int64_t row, int64_t end, int64_t delta, int64_t index, int64_t target, uint8_t *p,
                              int64_t *size)
{
    row_t found = {NULL, NULL, NULL, -1, -1, -1};
    for (*size = 0; row < end && *size < target; row++, index++) {
        found.key_size = arrow_row(keys, row, &found.key);
        found.value_size = arrow_row(values, row, &found.value);
        found.headers_size = arrow_row(headers, row, &found.headers);
        const int64_t length = row_size(&found, delta, index);
        *size += length + varint_size((uint64_t)length << 1);
        if (p)
            p = put_row(&found, length, delta, index, p);
    }
    return row;
}

/* Hash of Java's default partitioner; https://github.com/aappleby/smhasher (MurmurHash2). */
static uint32_t murmur2(const uint8_t *data, int64_t length)
{
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28c ^ (uint32_t)length;
    for (; length >= 4; data += 4, length -= 4) {
        uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    if (length >= 3)
        h ^= (uint32_t)data[2] << 16;
    if (length >= 2)
        h ^= (uint32_t)data[1] << 8;
    if (length >= 1)
        h = (h ^ data[0]) * m;
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

#endif
