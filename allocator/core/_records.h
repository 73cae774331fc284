/* Finds and decodes records into columns. No code here uses Python, so it runs without the interpreter's lock.
 *
 * Formats: https://kafka.apache.org/documentation/#messageformat (v2), https://kafka.apache.org/0100/documentation/
 * #messageformat (v0, v1); KIP-31, KIP-32, KIP-98. `core/fetch/decode_plain.py` does the same in Python, under the same tests.
 *
 * Keys and values become the views of Arrow's "binary view" layout: 16 bytes with the length and either the bytes
 * themselves (up to 12), or the first four, the number of a buffer and a position in it. Nothing is copied.
 * https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout
 */
#ifndef ALLOCATOR_RECORDS_H
#define ALLOCATOR_RECORDS_H

#include "_crc32c.h"

#if defined(__GNUC__) || defined(__clang__)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define INLINE static inline __attribute__((always_inline))
#else
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#define INLINE static inline
#endif

enum { LOG_OVERHEAD = 12, V2_HEADER = 61, V2_CRC_FROM = 21, V2_MIN_RECORD = 7, OLD_CRC_FROM = 16 };
enum { CODEC_MASK = 0x07, APPEND_TIME = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20 };

/* Why something does not decode: a text for Python's str.format, and its numbers. */
typedef struct {
    const char *form;
    int64_t a, b;
} problem_t;

INLINE int bad(problem_t *why, const char *form, int64_t a, int64_t b)
{
    why->form = form;
    why->a = a;
    why->b = b;
    return -1;
}

/* One record batch, or a run of uncompressed old messages, or one compressed set of them (count -1). */
typedef struct {
    int64_t base_offset, next_offset, base_timestamp, append_time, producer;
    int64_t start, end, size;
    int32_t count, leader_epoch;
    uint8_t magic, codec, attributes, has_append_time;
} segment_t;

typedef struct {
    int32_t length;
    uint8_t prefix[4];
    int32_t buffer, position;
} view_t;

typedef struct {
    int64_t *offsets, *timestamps;
    view_t *keys, *values;
    /* position of each record's headers in its buffer; 0: it has none */
    int32_t *headers;
    /* bit i is set if record i has a key, a value */
    uint8_t *key_bits, *value_bits;
    int64_t null_keys, null_values, headered;
} columns_t;

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

INLINE uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

INLINE int32_t be_int32(const uint8_t *p) { return (int32_t)be32(p); }

INLINE int64_t be_int64(const uint8_t *p) { return (int64_t)((uint64_t)be32(p) << 32 | be32(p + 4)); }

INLINE int64_t unzigzag(uint64_t n) { return (int64_t)(n >> 1) ^ -(int64_t)(n & 1); }

/* The sum may wrap; the caller checks it. */
INLINE int64_t plus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }

INLINE int64_t minus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }

/* Returns whether `sum` overflowed 64 bits, or is the lowest number. */
INLINE int overflowed(int64_t a, int64_t b, int64_t sum)
{
    return ((a ^ sum) & (b ^ sum)) < 0 || sum == INT64_MIN;
}

static const char OUTSIDE[] = "a record ends outside its batch";
static const char TOO_LONG[] = "a varint of more than 64 bits";

/* Decodes the rest of a varint, after its second byte. If it does not end, returns 0 and sets *at to NULL. */
static uint64_t long_varint(const uint8_t **at, const uint8_t *end, uint64_t value)
{
    const uint8_t *p = *at;
    for (unsigned shift = 14; p < end; shift += 7) {
        const uint64_t byte = *p++;
        if (shift == 63 && byte > 1)
            break;
        value |= (byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            *at = p;
            return value;
        }
    }
    *at = NULL;
    return 0;
}

/* Decodes a varint without zigzag. Sets *at to NULL if it is cut off or too long. */
INLINE uint64_t varint(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *p = *at;
    if (UNLIKELY(p >= end))
        goto nothing;
    const uint64_t first = *p++;
    if (LIKELY(!(first & 0x80))) {
        *at = p;
        return first;
    }
    if (UNLIKELY(p >= end))
        goto nothing;
    const uint64_t second = *p++;
    *at = p;
    const uint64_t value = (first & 0x7F) | (second & 0x7F) << 7;
    if (LIKELY(!(second & 0x80)))
        return value;
    return long_varint(at, end, value);
nothing:
    *at = NULL;
    return 0;
}

static const char *varint_problem(const uint8_t *p, const uint8_t *end)
{
    for (int size = 0; size < 10 && p + size < end; size++)
        if (!(p[size] & 0x80))
            return TOO_LONG;
    return end - p < 10 ? OUTSIDE : TOO_LONG;
}

/* ---- columns ---------------------------------------------------------------------------------------------------- */

/* Writes a view of the `size` bytes at `base` + `at`. Reads nothing from `end` on. */
INLINE void put_view(view_t *view, const uint8_t *base, int64_t at, int64_t size, const uint8_t *end, int32_t buffer)
{
    const uint8_t *p = base + at;
    view->length = (int32_t)size;
    if (LIKELY(size > 12)) {
        memcpy(view->prefix, p, 4);
        view->buffer = buffer;
        view->position = (int32_t)at;
        return;
    }
    memset(view->prefix, 0, 12);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (LIKELY(end - p >= 12)) {
        /* two words, cut to size: copying an unknown size is a function call */
        uint64_t low;
        uint32_t high;
        memcpy(&low, p, 8);
        memcpy(&high, p + 8, 4);
        low &= size >= 8 ? ~(uint64_t)0 : ((uint64_t)1 << 8 * size) - 1;
        high &= size <= 8 ? 0 : (uint32_t)(((uint64_t)1 << 8 * (size - 8)) - 1);
        memcpy(view->prefix, &low, 8);
        memcpy((uint8_t *)view + 12, &high, 4);
        return;
    }
#endif
    for (int64_t i = 0; i < size; i++)
        ((uint8_t *)view)[4 + i] = p[i];
}

INLINE void put_null(view_t *view) { memset(view, 0, sizeof *view); }

INLINE void set_bit(uint8_t *bits, int64_t i) { bits[i >> 3] |= (uint8_t)(1 << (i & 7)); }

/* Returns the same pointer, without the compiler noticing. So the processor finds the next record by the length of this
 * one, which is known early, and does not wait for the lengths of all of its fields. */
INLINE const uint8_t *hidden(const uint8_t *p)
{
#if defined(__GNUC__) || defined(__clang__)
    __asm__("" : "+r"(p));
#endif
    return p;
}

/* Checks the headers at `p`. Returns the position after them, or NULL. */
static const uint8_t *skip_headers(const uint8_t *p, const uint8_t *end, problem_t *why)
{
    const int64_t count = unzigzag(varint(&p, end));
    if (!p) {
        bad(why, OUTSIDE, 0, 0);
        return NULL;
    }
    /* each has at least two lengths */
    if (count < 0 || count > (end - p) / 2) {
        bad(why, "{} headers in {} bytes", count, end - p);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        for (int part = 0; part < 2; part++) {
            const int64_t size = unzigzag(varint(&p, end));
            if (!p) {
                bad(why, OUTSIDE, 0, 0);
                return NULL;
            }
            if (size > end - p || (part == 0 && size < 0)) {
                bad(why, part ? "a header of {} bytes" : "a header name of {} bytes", size, 0);
                return NULL;
            }
            p += size > 0 ? size : 0;
        }
    }
    return p;
}

/* Returns the number of checked headers at *at, and moves *at after that number. */
static int64_t headers_at(const uint8_t *base, int64_t size, int64_t *at)
{
    const uint8_t *p = base + *at;
    const int64_t count = unzigzag(varint(&p, base + size));
    if (!p)
        return 0;
    *at = p - base;
    return count;
}

typedef struct {
    int64_t name_at, name_size, value_at, value_size;
} header_t;

/* Reads the checked header at `at`. Returns the position after it. A value of size -1 is null. */
static int64_t read_header(const uint8_t *base, int64_t size, int64_t at, header_t *out)
{
    const uint8_t *p = base + at, *const end = base + size;
    memset(out, 0, sizeof *out);
    out->name_size = unzigzag(varint(&p, end));
    if (!p)
        return size;
    out->name_at = p - base;
    p += out->name_size;
    out->value_size = unzigzag(varint(&p, end));
    if (!p)
        return size;
    out->value_at = p - base;
    return out->value_at + (out->value_size > 0 ? out->value_size : 0);
}

/* Writes the headers at `at` as views, from row `row` on. Returns the row after the last one. */
static int64_t put_headers(const uint8_t *base, int64_t size, int64_t at, int32_t buffer, view_t *names, view_t *values,
                           uint8_t *value_bits, int64_t row, int64_t *null_values)
{
    header_t header;
    for (int64_t count = headers_at(base, size, &at); count > 0; count--, row++) {
        at = read_header(base, size, at, &header);
        put_view(&names[row], base, header.name_at, header.name_size, base + size, buffer);
        if (header.value_size < 0) {
            put_null(&values[row]);
            ++*null_values;
        } else {
            put_view(&values[row], base, header.value_at, header.value_size, base + size, buffer);
            set_bit(value_bits, row);
        }
    }
    return row;
}

/* Decodes the records of a v2 batch, `start` to `end` of `base`, into `out` from row `row` on. */
static int decode_batch(const uint8_t *base, int64_t start, int64_t end, const segment_t *segment, columns_t *out,
                        int64_t row, int32_t buffer, problem_t *why)
{
    const uint8_t *p = base + start;
    const uint8_t *const stop = base + end;
    const int64_t base_offset = segment->base_offset, base_time = segment->base_timestamp;
    const int64_t last_delta = segment->next_offset - 1 - base_offset, count = segment->count;
    /* in locals: otherwise the compiler would load them again after each store of a byte */
    int64_t *const offsets = out->offsets + row, *const timestamps = out->timestamps + row;
    view_t *const keys = out->keys + row, *const values = out->values + row;
    int32_t *const headers = out->headers + row;
    uint8_t *const key_bits = out->key_bits, *const value_bits = out->value_bits;
    int64_t previous = -1, null_keys = 0, null_values = 0, i;
    /* bits of the byte of `row` + `i`: whether key and value are not null */
    unsigned bit = 1u << (row & 7), key_byte = key_bits[row >> 3], value_byte = value_bits[row >> 3];
    uint64_t widest = 0;

    for (i = 0; i < count; i++) {
        const uint8_t *const from = p;
        const uint64_t length = varint(&p, stop);
        if (UNLIKELY(!p))
            return bad(why, varint_problem(from, stop), 0, 0);
        if (UNLIKELY(length & 1 || length >> 1 > (uint64_t)(stop - p)))
            return bad(why, "record {} is longer than its batch", i, 0);
        const uint8_t *const record_end = p + (length >> 1);

        p++; /* the attributes, which are unused */
        const uint64_t time = varint(&p, record_end);
        if (UNLIKELY(!p))
            goto outside;
        widest |= time;
        timestamps[i] = plus(base_time, unzigzag(time));

        const uint64_t delta = varint(&p, record_end);
        if (UNLIKELY(!p))
            goto outside;
        if (UNLIKELY(delta & 1 || (int64_t)(delta >> 1) <= previous))
            return bad(why, "record {} has its offset out of order", i, 0);
        previous = (int64_t)(delta >> 1);
        offsets[i] = plus(base_offset, previous);

        const uint64_t key = varint(&p, record_end);
        if (UNLIKELY(!p))
            goto outside;
        if (key & 1) {
            put_null(&keys[i]);
            null_keys++;
        } else {
            if (UNLIKELY(key >> 1 > (uint64_t)(record_end - p)))
                goto outside;
            put_view(&keys[i], base, p - base, (int64_t)(key >> 1), stop, buffer);
            key_byte |= bit;
            p += key >> 1;
        }

        const uint64_t value = varint(&p, record_end);
        if (UNLIKELY(!p))
            goto outside;
        if (UNLIKELY(value & 1)) {
            put_null(&values[i]);
            null_values++;
        } else {
            if (UNLIKELY(value >> 1 > (uint64_t)(record_end - p)))
                goto outside;
            put_view(&values[i], base, p - base, (int64_t)(value >> 1), stop, buffer);
            value_byte |= bit;
            p += value >> 1;
        }

        if (UNLIKELY(p >= record_end))
            goto outside;
        if (LIKELY(*p == 0)) {
            headers[i] = 0;
            p++;
        } else {
            headers[i] = (int32_t)(p - base);
            out->headered++;
            p = skip_headers(p, record_end, why);
            if (UNLIKELY(!p))
                return -1;
        }
        if (UNLIKELY(p != record_end))
            return bad(why, "record {} has another length than its fields", i, 0);
        p = hidden(record_end);
        bit <<= 1;
        if (bit == 0x100) {
            key_bits[(row + i) >> 3] = (uint8_t)key_byte;
            value_bits[(row + i) >> 3] = (uint8_t)value_byte;
            bit = 1;
            key_byte = value_byte = 0;
        }
        continue;
    outside:
        return bad(why, OUTSIDE, 0, 0);
    }
    if (p != stop)
        return bad(why, "{} bytes after the last record", stop - p, 0);
    if (bit != 1) {
        key_bits[(row + i) >> 3] = (uint8_t)key_byte;
        value_bits[(row + i) >> 3] = (uint8_t)value_byte;
    }
    if (previous > last_delta)
        return bad(why, "offset delta {} in a batch of {}", previous, last_delta + 1);
    if (segment->has_append_time) {
        for (i = 0; i < count; i++)
            timestamps[i] = segment->append_time;
    } else if (UNLIKELY(widest >> 62 || base_time > INT64_MAX / 4 || base_time < INT64_MIN / 4)) {
        for (i = 0; i < count; i++)
            if (overflowed(base_time, minus(timestamps[i], base_time), timestamps[i]))
                return bad(why, "a timestamp of more than 64 bits", 0, 0);
    }
    out->null_keys += null_keys;
    out->null_values += null_values;
    return 0;
}

/* ---- the old formats -------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t offset, time, end;
    int64_t key_at, key_size, value_at, value_size;
    uint8_t magic, attributes;
} message_t;

/* Reads the message at `pos`, whose offset must be above `floor`. Returns 1; 0 if it is cut off; -1 if it is corrupt. */
static int read_message(const uint8_t *base, int64_t pos, int64_t size, int64_t floor, int check_crc, message_t *out,
                        problem_t *why)
{
    if (size - pos < 18)
        return 0;
    const uint8_t *p = base + pos;
    const int64_t length = be_int32(p + 8);
    if (length < 0 || length > size - pos - LOG_OVERHEAD)
        return 0;
    const uint8_t magic = p[16];
    if (magic > 1)
        return bad(why, "a message in format v{}", magic, 0);
    const int64_t end = pos + LOG_OVERHEAD + length;
    if (length < (magic ? 22 : 14))
        return bad(why, "a message of {} bytes in format v{}", length, magic);
    if (check_crc && crc32_of(p + OLD_CRC_FROM, (size_t)(length - 4)) != be32(p + 12))
        return bad(why, "the checksum of the message is wrong", 0, 0);
    out->offset = be_int64(p);
    if (out->offset <= floor || out->offset == INT64_MAX)
        return bad(why, "offset {} after {}", out->offset, floor);
    out->magic = magic;
    out->attributes = p[17];
    out->time = magic ? be_int64(p + 18) : -1;
    int64_t at = pos + (magic ? 26 : 18);
    out->key_size = be_int32(base + at);
    at += 4;
    out->key_at = at;
    at += out->key_size > 0 ? out->key_size : 0;
    if (out->key_size < -1 || end - at < 4)
        return bad(why, "a message has another length than its fields", 0, 0);
    out->value_size = be_int32(base + at);
    at += 4;
    out->value_at = at;
    if (out->value_size < -1 || (out->value_size > 0 ? out->value_size : 0) != end - at)
        return bad(why, "a message has another length than its fields", 0, 0);
    out->end = end;
    return 1;
}

/* Returns the number of messages in a decompressed set, and their offsets; -1 if it is corrupt. */
static int64_t count_messages(const uint8_t *base, int64_t size, int64_t *first, int64_t *last, problem_t *why)
{
    int64_t pos = 0, count = 0;
    message_t message;
    *last = -1;
    while (pos < size) {
        const int read = read_message(base, pos, size, *last, 1, &message, why);
        if (read < 0)
            return -1;
        if (!read)
            return bad(why, "a compressed set ends within a message", 0, 0);
        if (message.attributes & CODEC_MASK)
            return bad(why, "a compressed set within a compressed set", 0, 0);
        if (!count)
            *first = message.offset;
        *last = message.offset;
        count++;
        pos = message.end;
    }
    if (!count)
        return bad(why, "a compressed set without a message", 0, 0);
    return count;
}

/* Decodes checked messages, `start` to `end` of `base`, into `out` from row `row` on; adds `shift` to their offsets.
 * `wrapper` is the compressed set around them, if any, whose log-append time applies to all. */
static void decode_messages(const uint8_t *base, int64_t start, int64_t end, int64_t shift, const segment_t *wrapper,
                            columns_t *out, int64_t row, int32_t buffer)
{
    message_t message;
    problem_t why;
    for (int64_t pos = start; pos < end; pos = message.end, row++) {
        if (read_message(base, pos, end, INT64_MIN, 0, &message, &why) <= 0)
            return; /* impossible: they were checked */
        out->offsets[row] = plus(message.offset, shift);
        out->timestamps[row] = wrapper && wrapper->has_append_time ? wrapper->append_time : message.time;
        out->headers[row] = 0;
        if (message.key_size < 0) {
            put_null(&out->keys[row]);
            out->null_keys++;
        } else {
            put_view(&out->keys[row], base, message.key_at, message.key_size, base + end, buffer);
            set_bit(out->key_bits, row);
        }
        if (message.value_size < 0) {
            put_null(&out->values[row]);
            out->null_values++;
        } else {
            put_view(&out->values[row], base, message.value_at, message.value_size, base + end, buffer);
            set_bit(out->value_bits, row);
        }
    }
}

/* One segment to decode: its bytes, `start` to `end` of `base`, and the rows for its records. */
typedef struct {
    const segment_t *segment;
    const uint8_t *base;
    int64_t start, end, shift, row, count;
    int32_t buffer;
} job_t;

/* Returns the number of decoded segments. If it is less than `many`, the next one is corrupt. */
static int64_t decode_jobs(const job_t *jobs, int64_t many, columns_t *out, problem_t *why)
{
    for (int64_t i = 0; i < many; i++) {
        const job_t *job = &jobs[i];
        const segment_t *segment = job->segment;
        if (segment->magic < 2)
            decode_messages(job->base, job->start, job->end, job->shift, segment->codec ? segment : NULL, out, job->row,
                            job->buffer);
        else if (decode_batch(job->base, job->start, job->end, segment, out, job->row, job->buffer, why))
            return i;
    }
    return many;
}

/* Reads a compressed message, or a run of uncompressed messages of one kind. The first must be complete. */
static int scan_messages(const uint8_t *data, int64_t pos, int64_t size, int64_t floor, segment_t *out, problem_t *why)
{
    message_t message, first;
    problem_t later;
    const int read = read_message(data, pos, size, floor, 1, &first, why);
    if (read <= 0)
        return read ? -1 : bad(why, OUTSIDE, 0, 0);
    message = first;
    int64_t count = 1, at = first.end, last = first.offset;
    const uint8_t codec = first.attributes & CODEC_MASK;
    while (!codec && count < INT32_MAX && read_message(data, at, size, last, 1, &message, &later) > 0 &&
           message.magic == first.magic && message.attributes == first.attributes) {
        count++;
        at = message.end;
        last = message.offset;
    }
    if (codec && first.value_size < 0)
        return bad(why, "a compressed message without a value", 0, 0);
    memset(out, 0, sizeof *out);
    out->magic = first.magic;
    /* only the last offset of a compressed set is outside; the first is anywhere after the message before */
    out->base_offset = codec ? floor + 1 : first.offset;
    out->next_offset = last + 1;
    out->count = codec ? -1 : (int32_t)count;
    out->codec = codec;
    out->start = codec ? first.value_at : pos;
    out->end = at;
    out->size = at - pos;
    out->base_timestamp = first.time;
    out->has_append_time = first.magic && first.attributes & APPEND_TIME;
    out->append_time = out->has_append_time ? first.time : 0;
    out->leader_epoch = -1;
    out->producer = -1;
    return 0;
}

/* ---- the walk --------------------------------------------------------------------------------------------------- */

static int scan_batch(const uint8_t *data, int64_t pos, int64_t end, int hardware, segment_t *out, problem_t *why)
{
    const uint8_t *p = data + pos;
    if (end - pos < V2_HEADER)
        return bad(why, "a record batch of {} bytes", end - pos, 0);
    if (crc32c_of(p + V2_CRC_FROM, (size_t)(end - pos - V2_CRC_FROM), hardware) != be32(p + 17))
        return bad(why, "the checksum of the record batch is wrong", 0, 0);
    const int64_t base = be_int64(p);
    const int32_t last_delta = be_int32(p + 23), count = be_int32(p + 57);
    const uint8_t attributes = p[22];
    if (last_delta < 0 || count < 0 || count > (int64_t)last_delta + 1 || base > INT64_MAX - last_delta - 1)
        return bad(why, "a record batch of {} records over {} offsets", count, (int64_t)last_delta + 1);
    if (!(attributes & CODEC_MASK) && (int64_t)count * V2_MIN_RECORD > end - pos - V2_HEADER)
        return bad(why, "{} records in {} bytes", count, end - pos - V2_HEADER);
    out->magic = 2;
    out->base_offset = base;
    out->next_offset = base + last_delta + 1;
    out->count = count;
    out->codec = attributes & CODEC_MASK;
    out->attributes = attributes;
    out->start = pos + V2_HEADER;
    out->end = end;
    out->size = end - pos;
    out->base_timestamp = be_int64(p + 27);
    out->has_append_time = (attributes & APPEND_TIME) != 0;
    out->append_time = out->has_append_time ? be_int64(p + 35) : 0;
    out->producer = be_int64(p + 43);
    out->leader_epoch = be_int32(p + 12) >= 0 ? be_int32(p + 12) : -1;
    return 0;
}

/* Finds up to `most` segments from *pos on, and moves *pos and *floor. Returns their number. Sets `why->form` if the next
 * one is corrupt. If there are fewer than `most` and none is corrupt, the rest is cut off. */
static int64_t scan_segments(const uint8_t *data, int64_t size, int64_t *at, int64_t *lowest, int hardware,
                             segment_t *out, int64_t most, problem_t *why)
{
    int64_t pos = *at, floor = *lowest, found = 0;
    why->form = NULL;
    while (found < most && size - pos >= LOG_OVERHEAD) {
        const int64_t base = be_int64(data + pos), length = be_int32(data + pos + 8);
        if (length < 14) {
            bad(why, "a record batch of {} bytes", length, 0);
            break;
        }
        if (length > size - pos - LOG_OVERHEAD)
            break;
        const uint8_t magic = data[pos + 16];
        if (base <= floor || base < 0) {
            bad(why, "a record batch at offset {}", base, 0);
            break;
        }
        int failed;
        if (magic == 2)
            failed = scan_batch(data, pos, pos + LOG_OVERHEAD + length, hardware, &out[found], why);
        else if (magic < 2)
            failed = scan_messages(data, pos, size, floor, &out[found], why);
        else
            failed = bad(why, "record format v{}", magic, 0);
        if (failed)
            break;
        pos += out[found].size;
        floor = out[found].next_offset - 1;
        found++;
    }
    *at = pos;
    *lowest = floor;
    return found;
}

#endif
