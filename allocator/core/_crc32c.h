/* CRC-32C of record batches (v2) and CRC-32 of old messages.
 *
 * CRC-32C uses the processor's instruction where there is one, found at run time: SSE4.2 with a carry-less multiply on
 * x86-64, and ARMv8's. On x86-64 three streams run in parallel, since the instruction takes three cycles and one can start
 * in each. Otherwise it takes eight bytes at a time from tables. Call `crc_init` first.
 */
#ifndef ALLOCATOR_CRC32C_H
#define ALLOCATOR_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CRC_X86 1
#include <immintrin.h>
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(__AARCH64EB__)
#define CRC_ARM 1
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

typedef uint32_t crc_table[8][256];

static crc_table crc_tables[2];
enum { CRC32 = 0, CRC32C = 1 };
static const uint32_t crc_polynomials[2] = {0xEDB88320u, 0x82F63B78u};
static int crc_hardware = 0;

/* Takes eight bytes at a time, from tables. `crc` is not inverted before and after. */
static uint32_t crc_by_table(const crc_table table, uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = table[7][crc & 0xFF] ^ table[6][crc >> 8 & 0xFF] ^ table[5][crc >> 16 & 0xFF] ^ table[4][crc >> 24] ^
              table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; n; n--)
        crc = table[0][(crc ^ *p++) & 0xFF] ^ crc >> 8;
    return crc;
}

#if defined(CRC_X86)
enum { CRC_LONG = 1024, CRC_SHORT = 128 };
/* factors that move a stream one or two blocks to the left; [long or short][one, two] */
static uint64_t crc_shifts[2][2];

/* Returns x to the power of `exponent` modulo CRC-32C's polynomial. Bits are reflected, as everywhere here. */
static uint32_t crc_power(unsigned exponent)
{
    uint32_t value = 0x80000000u;
    while (exponent--)
        value = value >> 1 ^ (value & 1 ? crc_polynomials[CRC32C] : 0);
    return value;
}

/* newer clangs have a separate feature for the instruction; older ones and gcc before 11 lack its name */
#if defined(__clang__) && __clang_major__ >= 14
#define CRC_TARGET "sse4.2,crc32,pclmul"
#else
#define CRC_TARGET "sse4.2,pclmul"
#endif

__attribute__((target(CRC_TARGET))) static inline uint64_t crc_shift(uint64_t crc, uint64_t by)
{
    /* the product of reflected factors has one x too many, and the instruction adds 32: `by` has 33 fewer */
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)by), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

static inline uint64_t crc_load(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

__attribute__((target(CRC_TARGET))) static uint32_t crc_by_sse(uint32_t start, const uint8_t *p, size_t n)
{
    uint64_t a = start;
    for (int size = 0; size < 2; size++) {
        const size_t block = size ? CRC_SHORT : CRC_LONG;
        for (; n >= 3 * block; n -= 3 * block, p += 3 * block) {
            uint64_t b = 0, c = 0;
            for (size_t i = 0; i < block; i += 8) {
                a = _mm_crc32_u64(a, crc_load(p + i));
                b = _mm_crc32_u64(b, crc_load(p + block + i));
                c = _mm_crc32_u64(c, crc_load(p + 2 * block + i));
            }
            a = crc_shift(a, crc_shifts[size][1]) ^ crc_shift(b, crc_shifts[size][0]) ^ c;
        }
    }
    for (; n >= 8; n -= 8, p += 8)
        a = _mm_crc32_u64(a, crc_load(p));
    uint32_t crc = (uint32_t)a;
    for (; n; n--)
        crc = _mm_crc32_u8(crc, *p++);
    return crc;
}
#endif

#if defined(CRC_ARM)
static uint32_t crc_by_arm(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; n; n--)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*p++));
    return crc;
}
#endif

/* Call it once, before any other thread calls a function of this file. */
static void crc_init(void)
{
    for (int kind = 0; kind < 2; kind++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++)
                value = value >> 1 ^ (value & 1 ? crc_polynomials[kind] : 0);
            crc_tables[kind][0][byte] = value;
        }
        for (int more = 1; more < 8; more++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t before = crc_tables[kind][more - 1][byte];
                crc_tables[kind][more][byte] = crc_tables[kind][0][before & 0xFF] ^ before >> 8;
            }
    }
#if defined(CRC_X86)
    __builtin_cpu_init();
    crc_hardware = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
    for (int size = 0; size < 2; size++)
        for (int blocks = 1; blocks <= 2; blocks++)
            crc_shifts[size][blocks - 1] = crc_power(8u * (unsigned)blocks * (size ? CRC_SHORT : CRC_LONG) - 33);
#elif defined(CRC_ARM) && defined(__linux__)
    crc_hardware = (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
#elif defined(CRC_ARM) && defined(__APPLE__)
    crc_hardware = 1;
#endif
}

static uint32_t crc32c_of(const uint8_t *p, size_t n, int hardware)
{
#if defined(CRC_X86)
    if (hardware)
        return ~crc_by_sse(~0u, p, n);
#elif defined(CRC_ARM)
    if (hardware)
        return ~crc_by_arm(~0u, p, n);
#endif
    (void)hardware;
    return ~crc_by_table((const uint32_t (*)[256])crc_tables[CRC32C], ~0u, p, n);
}

static uint32_t crc32_of(const uint8_t *p, size_t n)
{
    return ~crc_by_table((const uint32_t (*)[256])crc_tables[CRC32], ~0u, p, n);
}

#endif
