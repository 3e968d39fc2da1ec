/* Data structures of the snapshot machine, and its memory accounting.
 *
 * Part of _machine.c. Arrays grow through fit() and hash tables through widen(), which count their
 * memory and fail beyond the limit for the bytes read; columns of tables call charge() themselves, and
 * keep() stores the rest of a block.
 */
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian machines only; the others read it in Python"
#endif

typedef uint64_t word;

/* The last three are internal: an open container, a memo entry that must not be fetched, and a stack
 * in the memo that was not fetched yet. */
enum { NONE, BOOL, INT, BIG, FLOAT, STR, EMPTY, STACK, TUPLE, LIST, DICT, ROW, OPEN, BARRED, KEPT };
/* Kinds of OPEN; the bits above are unused, a memo index, a sequence, or a chain. */
enum { NEW_LIST, NEW_DICT, MEMO_LIST, MEMO_DICT, OPEN_STACK, MEMO_STACK, OPEN_LIST, OPEN_DICT };
enum {
    FINE, OPCODE, BEYOND, NEVER_STORED, STORED_TWICE, INTEGER, TEXT, USED_TWICE, REFILLED, MEMORY,
    MARKS, FRAMES, TOO_FEW, NO_MARK, NO_LIST, NO_DICT, ODD, PROTOCOL, START, PROTO_AGAIN, LEFT_OVER,
    NESTED_TUPLE, LONG_TUPLE, KEPT_TWICE, AGAIN, TOO_MANY, NO_MEMORY
};
#define MOST_TEXT (16u << 20)
#define MOST_MARKS 1000
#define MOST_ITEMS 65536 /* of a stack or a tuple */
#define MOST_TABLES 16
#define MOST_FIELDS 64
#define MOST_BIG 9
#define ALLOWANCE (32ull << 20)
#define AHEAD 1024 /* maximum gap between memo indices */

#define TAG(w) ((unsigned)(w) & 15)
#define WORD(tag, value) ((word)(value) << 4 | (tag))
#define OPENED(kind, value) ((word)(value) << 7 | (word)(kind) << 4 | OPEN)
#define KIND(w) ((unsigned)((w) >> 4) & 7)
#define OF(w) ((w) >> 7)
#define UNSET WORD(BARRED, 0)
#define TAKEN WORD(BARRED, 1)
#define IS_FRAME(w) (((w) & 0xFF0000000000000Full) == ROW)

typedef struct { void *at; size_t used, room; } store;

/* Distinct byte strings, numbered. A slot is the hash's upper half and the number + 1. */
typedef struct { store bytes, ends; uint64_t *slots; size_t size; } pool;

/* Growing runs of words: each a chain of pieces of one store. */
typedef struct { uint64_t start, count, next; } piece; /* next: number + 1, or 0 */
typedef struct { uint64_t first, last; } chain;        /* numbers + 1, or 0 */
typedef struct { store words, pieces, chains; } chains;

typedef struct { size_t fields, rows, room; uint64_t seen; word *columns[MOST_FIELDS]; } table;

typedef struct {
    PyObject_HEAD
    int busy, taken, stopped, problem, protocol;
    uint64_t argument;     /* of the problem */
    uint64_t consumed;     /* bytes of complete opcodes */
    uint64_t at, behind;   /* start and end of the current opcode */
    uint64_t trailing, allocated, seed, again;
    word root;
    store stack, memo, scratch, pending;
    size_t marks[MOST_MARKS], open_marks, stored;
    pool strings, bigs, floats, sequences, frames;
    chains lists, dicts;
    size_t keys, count;
    uint16_t *triggers;    /* by key: a bit for each table */
    int8_t *fields;        /* by table and key: its column, or -1 */
    table tables[MOST_TABLES];
} machine;

#define WORDS(s) ((word *)(s).at)

static int fail(machine *m, int problem, uint64_t argument) {
    if (!m->problem) { m->problem = problem; m->argument = argument; }
    return 0;
}

/* ---- memory ---- */

static int charge(machine *m, uint64_t bytes) {
    if (m->allocated + bytes > 2 * m->behind + ALLOWANCE) return fail(m, MEMORY, 0);
    m->allocated += bytes;
    return 1;
}

static size_t next_room(size_t room, size_t need) {
    if (room < 64) room = 64;
    else if (room < 1 << 16) room *= 2;
    else room += room >> (room < 1 << 20 ? 2 : 3); /* slowly, so that dense files stay below the limit */
    return room < need ? need : room;
}

static int fit(machine *m, store *s, size_t need, size_t each) {
    if (need <= s->room) return 1;
    size_t room = next_room(s->room, need);
    if (!charge(m, (uint64_t)(room - s->room) * each)) return 0;
    void *at = realloc(s->at, room * each);
    if (!at) return fail(m, NO_MEMORY, 0);
    s->at = at; s->room = room;
    return 1;
}

static void drop(store *s) { free(s->at); *s = (store){0}; }

/* ---- interned values ---- */

static uint64_t mixed(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    unsigned __int128 r = (unsigned __int128)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
#else
    a = (a ^ (b << 32 | b >> 32)) * 0x9E3779B97F4A7C15ull; a ^= (a >> 29) ^ b;
    a *= 0xD6E8FEB86659FD93ull;
    return a ^ a >> 32;
#endif
}

static uint64_t hash_of(const uint8_t *p, size_t size, uint64_t seed) {
    uint64_t a, b, h = mixed(seed ^ 0xA0761D6478BD642Full, size ^ 0xE7037ED1A0B428DBull);
    for (; size > 16; p += 16, size -= 16) {
        memcpy(&a, p, 8); memcpy(&b, p + 8, 8);
        h = mixed(a ^ seed, b ^ h);
    }
    a = b = 0;
    if (size > 8) { memcpy(&a, p, 8); memcpy(&b, p + 8, size - 8); }
    else if (size) memcpy(&a, p, size);
    h = mixed(a ^ seed, b ^ h);
    return mixed(h ^ seed, 0x8EBC6AF09C88C6E3ull);
}

static int widen(machine *m, pool *q) {
    size_t size = q->size ? q->size * 2 : 64;
    if (!charge(m, size * 8)) return 0;
    uint64_t *slots = calloc(size, 8);
    if (!slots) return fail(m, NO_MEMORY, 0);
    for (size_t i = 0; i < q->size; i++) {
        if (!q->slots[i]) continue;
        size_t to = q->slots[i] >> 32 & (size - 1);
        while (slots[to]) to = (to + 1) & (size - 1);
        slots[to] = q->slots[i];
    }
    free(q->slots);
    m->allocated -= q->size * 8;
    q->slots = slots; q->size = size;
    return 1;
}

static const uint8_t *entry(const pool *q, size_t number, size_t *size) {
    const uint64_t *ends = q->ends.at;
    uint64_t start = number ? ends[number - 1] : 0;
    *size = ends[number] - start;
    return (const uint8_t *)q->bytes.at + start;
}

/* Returns the number of these bytes, new or known. They must not be part of the pool itself. */
static int intern(machine *m, pool *q, const void *at, size_t size, uint64_t *number) {
    size_t count = q->ends.used, length;
    if (2 * (count + 1) > q->size && !widen(m, q)) return 0;
    uint64_t upper = hash_of(at, size, m->seed) >> 32;
    size_t slot = upper & (q->size - 1);
    for (; q->slots[slot]; slot = (slot + 1) & (q->size - 1)) {
        if (q->slots[slot] >> 32 != upper) continue;
        *number = (uint32_t)q->slots[slot] - 1;
        const uint8_t *known = entry(q, *number, &length);
        if (length == size && (!size || !memcmp(known, at, size))) return 1;
    }
    if (count >= 0x7FFFFFFF) return fail(m, TOO_MANY, 0);
    if (!fit(m, &q->ends, count + 1, 8) || !fit(m, &q->bytes, q->bytes.used + size, 1)) return 0;
    if (size) memcpy((uint8_t *)q->bytes.at + q->bytes.used, at, size);
    q->bytes.used += size;
    ((uint64_t *)q->ends.at)[count] = q->bytes.used;
    q->ends.used++;
    q->slots[slot] = upper << 32 | (count + 1);
    *number = count;
    return 1;
}

static void drop_pool(pool *q) {
    drop(&q->bytes); drop(&q->ends);
    free(q->slots); q->slots = NULL; q->size = 0;
}

/* ---- runs of words ---- */

/* Returns the final word of a container on the stack. */
static word settled(const machine *m, word w) {
    if (TAG(w) != OPEN) return w;
    switch (KIND(w)) {
    case OPEN_STACK: return WORD(STACK, OF(w));
    case MEMO_STACK: return WORD(STACK, WORDS(m->memo)[OF(w)] >> 4);
    case OPEN_LIST: return WORD(LIST, OF(w));
    case OPEN_DICT: return WORD(DICT, OF(w));
    }
    return EMPTY;
}

static int begin(machine *m, chains *c, uint64_t *number) {
    if (!fit(m, &c->chains, c->chains.used + 1, sizeof(chain))) return 0;
    *number = c->chains.used++;
    ((chain *)c->chains.at)[*number] = (chain){0, 0};
    return 1;
}

static int extend(machine *m, chains *c, uint64_t number, const word *items, size_t count) {
    chain *of = (chain *)c->chains.at + number;
    piece *last = of->last ? (piece *)c->pieces.at + of->last - 1 : NULL;
    if (!last || last->start + last->count != c->words.used) {
        if (!fit(m, &c->pieces, c->pieces.used + 1, sizeof(piece))) return 0;
        piece *pieces = c->pieces.at;
        if (of->last) pieces[of->last - 1].next = c->pieces.used + 1;
        last = pieces + c->pieces.used;
        *last = (piece){c->words.used, 0, 0};
        of->last = ++c->pieces.used;
        if (!of->first) of->first = of->last;
    }
    if (!fit(m, &c->words, c->words.used + count, 8)) return 0;
    word *to = WORDS(c->words) + c->words.used;
    for (size_t i = 0; i < count; i++) to[i] = settled(m, items[i]);
    c->words.used += count;
    last->count += count;
    return 1;
}
