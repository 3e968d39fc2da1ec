/* Strict scan of Chrome trace events into columns, without a Python object per event.
 *
 * One function, scan(). It reads the ordinary events (complete events, instants, flow points) of
 * well-formed JSON. Any other event (text instead of numbers, counters, begin/end pairs,
 * collectives, copies named by their arguments) is returned as a byte range, and the scan returns
 * None at the first byte that is not strict JSON. Python code handles both cases, so this file never
 * needs to be lenient and cannot hide an error in a file.
 *
 * Safety: all reads go through a cursor p < end, except that end[0] may be read: the buffer of a
 * bytes object ends with a NUL, and NUL ends every loop. No recursion beyond MAX_DEPTH.
 * The GIL is released while scanning; the caller keeps a reference to the bytes object.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64
#define NONE INT64_MIN
#define NO_CODE UINT32_MAX

enum { WANTED = 1, DEVICE = 2, OTHER = 64 }; /* flags of a category */
enum { SPECIAL = 4, NAMED = 8, ESCAPED = 16, MEMORY = 32 }; /* flags of a name */
enum { INPUTS = 256 }; /* flag of the name of an operator whose inputs are read */
enum { NOT_COMPUTED = 128 }; /* the flags of a text that is no name and no category so far */
enum outcome { SKIP, ROW, FLOW, REST };

/* --- growing arrays ------------------------------------------------------------------------- */

typedef struct { char *data; size_t used, room; } column;

static int grow(column *c, size_t more) {
    size_t room = c->room ? c->room * 2 : 1 << 14;
    while (room < c->used + more) room *= 2;
    char *data = realloc(c->data, room);
    if (!data) return 0;
    c->data = data; c->room = room;
    return 1;
}
static inline int put(column *c, const void *value, size_t size) {
    if (c->used + size > c->room && !grow(c, size)) return 0;
    memcpy(c->data + c->used, value, size);
    c->used += size;
    return 1;
}
static inline int put64(column *c, int64_t v) { return put(c, &v, 8); }
static inline int put32(column *c, uint32_t v) { return put(c, &v, 4); }

enum { /* the columns, in the order scan() returns them */
    ORDER, TS, DUR, CATEGORY, NAME, PID, TID, CORRELATION, EXTERNAL_ID,
    DEVICE_ROWS, DEVICE_NO, STREAM, COPIED,
    KERNEL_ROWS, GRID, BLOCK, REGISTERS, SHARED_MEMORY,
    MEMORY_ROWS, ALLOCATED, ADDRESS, DEVICE_TYPE, DEVICE_ID, TOTAL_ALLOCATED, TOTAL_RESERVED,
    SPECIAL_ROWS,
    FLOW_ORDER, FLOW_PHASE, FLOW_TS, FLOW_CATEGORY, FLOW_NAME, FLOW_PID, FLOW_TID, FLOW_ID, FLOW_NEXT,
    INPUT_ROWS, INPUT_DIMS, INPUT_TYPES, CONCRETE_INPUTS, ARGS, TEXTS, RESTS, COLUMNS
};

/* --- texts and their codes ------------------------------------------------------------------ */

typedef struct { const char *at; uint32_t length, hash, flags; } text;
typedef struct { text *all; uint32_t count, room; uint32_t *slots; uint32_t mask; } texts;

typedef struct { const char *at; Py_ssize_t length; int flags; } word;

typedef struct {
    const char *begin, *end;
    column out[COLUMNS];
    texts names;
    word *categories; Py_ssize_t n_categories; int other, absent;
    word *special; Py_ssize_t n_special;
    word *named; Py_ssize_t n_named;
    word *inputs_of; Py_ssize_t n_inputs_of;
    int64_t *windows; Py_ssize_t n_windows;
    int flows, all, args, input_dims, input_types, concrete_inputs;
    uint32_t rows, flow_rows;
    int64_t first; /* earliest time of any event, selected or not */
    int out_of_memory;
} scanner;

static int lower(int c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

static int contains(const char *at, uint32_t length, const word *w, int fold) {
    if (w->length == 0 || (Py_ssize_t)length < w->length) return 0;
    const char *last = at + length - w->length;
    for (const char *p = at; p <= last; p++) {
        Py_ssize_t i = 0;
        while (i < w->length && (fold ? lower((unsigned char)p[i]) : p[i]) == w->at[i]) i++;
        if (i == w->length) return 1;
    }
    return 0;
}

static uint32_t flags_of(const scanner *s, const char *at, uint32_t length) {
    uint32_t flags = 0;
    const char *from = at, *to = at + length;
    if (memchr(at, '\\', length)) flags |= ESCAPED;
    if (length == 8 && !memcmp(at, "[memory]", 8)) flags |= MEMORY;
    for (Py_ssize_t i = 0; i < s->n_special; i++)
        if (contains(at, length, &s->special[i], 1)) { flags |= SPECIAL; break; }
    for (Py_ssize_t i = 0; i < s->n_named; i++)
        if (contains(at, length, &s->named[i], 0)) { flags |= NAMED; break; }
    for (Py_ssize_t i = 0; i < s->n_inputs_of; i++)
        if (s->inputs_of[i].length == (Py_ssize_t)length && !memcmp(at, s->inputs_of[i].at, length)) {
            flags |= INPUTS;
            break;
        }
    if (!s->n_inputs_of) flags |= INPUTS;
    /* as a category: surrounding blanks and case are ignored */
    while (from < to && *from == ' ') from++;
    while (to > from && to[-1] == ' ') to--;
    int category = from == to ? s->absent : s->other;
    for (Py_ssize_t i = 0; i < s->n_categories; i++) {
        const word *w = &s->categories[i];
        if (w->length != to - from) continue;
        Py_ssize_t k = 0;
        while (k < w->length && lower((unsigned char)from[k]) == w->at[k]) k++;
        if (k == w->length) { category = w->flags; break; }
    }
    return flags | (uint32_t)category;
}

static int flags_at(const scanner *s, uint32_t code) {
    text *t = &s->names.all[code];
    if (t->flags == NOT_COMPUTED) t->flags = flags_of(s, t->at, t->length);
    return (int)t->flags;
}

static int rehash(texts *t) {
    uint32_t size = t->mask ? (t->mask + 1) * 2 : 1024;
    uint32_t *slots = malloc(size * sizeof *slots);
    if (!slots) return 0;
    memset(slots, 0xff, size * sizeof *slots);
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t at = t->all[i].hash & (size - 1);
        while (slots[at] != NO_CODE) at = (at + 1) & (size - 1);
        slots[at] = i;
    }
    free(t->slots);
    t->slots = slots; t->mask = size - 1;
    return 1;
}

static uint32_t code_of(scanner *s, const char *at, uint32_t length) {
    texts *t = &s->names;
    uint64_t h = 0x9E3779B97F4A7C15ull ^ length;
    uint32_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t w; memcpy(&w, at + i, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93ull; h ^= h >> 32;
    }
    if (i < length) {
        uint64_t w = 0; memcpy(&w, at + i, length - i);
        h = (h ^ w) * 0xD6E8FEB86659FD93ull; h ^= h >> 32;
    }
    uint32_t hash = (uint32_t)(h ^ (h >> 29));
    if (t->mask == 0 || t->count * 2 > t->mask) if (!rehash(t)) { s->out_of_memory = 1; return NO_CODE; }
    uint32_t slot = hash & t->mask;
    for (; t->slots[slot] != NO_CODE; slot = (slot + 1) & t->mask) {
        const text *known = &t->all[t->slots[slot]];
        if (known->hash == hash && known->length == length && !memcmp(known->at, at, length))
            return t->slots[slot];
    }
    if (t->count == t->room) {
        uint32_t room = t->room ? t->room * 2 : 512;
        text *all = realloc(t->all, room * sizeof *all);
        if (!all) { s->out_of_memory = 1; return NO_CODE; }
        t->all = all; t->room = room;
    }
    t->all[t->count] = (text){at, length, hash, NOT_COMPUTED};
    return t->slots[slot] = t->count++;
}

/* --- JSON ------------------------------------------------------------------------------------ */

static inline const char *blanks(const char *p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++;
    return p;
}

/* Returns the first quote, backslash or control character at or after p. */
static inline const char *notable(const char *p, const char *end) {
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - p >= 8) { /* 8 bytes at a time; only the lowest bit set is exact */
        uint64_t w; memcpy(&w, p, 8);
        uint64_t q = w ^ 0x2222222222222222ull, b = w ^ 0x5C5C5C5C5C5C5C5Cull;
        uint64_t hit = (((q - 0x0101010101010101ull) & ~q) | ((b - 0x0101010101010101ull) & ~b)
                     | ((w - 0x2020202020202020ull) & ~w)) & 0x8080808080808080ull;
        if (hit) return p + (__builtin_ctzll(hit) >> 3);
        p += 8;
    }
#endif
    (void)end;
    while ((unsigned char)*p >= 0x20 && *p != '"' && *p != '\\') p++;
    return p;
}

/* Returns the end of the escape sequence at p, or NULL. */
static const char *escape_end(const char *p) {
    char c = p[1];
    if (c != 'u') return c && strchr("\"\\/bfnrt", c) ? p + 2 : NULL;
    for (int i = 2; i < 6; i++) {
        int x = lower((unsigned char)p[i]);
        if (!((x >= '0' && x <= '9') || (x >= 'a' && x <= 'f'))) return NULL;
    }
    /* surrogates may be unpaired: left to Python */
    return lower((unsigned char)p[2]) == 'd' && lower((unsigned char)p[3]) >= '8' ? NULL : p + 6;
}

/* Returns the position after the closing quote of the string that starts at p, or NULL. */
static inline const char *string_end(const char *p, const char *end, int *escaped) {
    for (;;) {
        p = notable(p, end);
        if (*p == '"') return p + 1;
        if (*p != '\\' || !(p = escape_end(p))) return NULL;
        *escaped = 1;
    }
}

static const char *literal(const char *p, const char *end) {
    if (end - p >= 4 && (!memcmp(p, "null", 4) || !memcmp(p, "true", 4))) return p + 4;
    if (end - p >= 5 && !memcmp(p, "false", 5)) return p + 5;
    return NULL;
}

static const char *digits(const char *p) {
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

static const char *number_end(const char *p) {
    if (*p == '-') p++;
    const char *whole = p;
    p = digits(p);
    if (p == whole || (*whole == '0' && p - whole > 1)) return NULL;
    if (*p == '.') {
        const char *fraction = ++p;
        if ((p = digits(p)) == fraction) return NULL;
    }
    if (*p == 'e' || *p == 'E') { /* at most two digits: more may exceed a double */
        const char *exponent = p + 1 + (p[1] == '+' || p[1] == '-');
        const char *mantissa_end = p;
        p = digits(exponent);
        if (p == exponent || p - exponent > 2 || mantissa_end - whole > 40) return NULL;
    }
    return p;
}

/* Returns the end of the value at p, or NULL if it is not strict JSON. */
static const char *skip(const char *p, const char *end, int depth) {
    char c = *p;
    int escaped = 0;
    if (c == '"') return string_end(p + 1, end, &escaped);
    if (c == '-' || (c >= '0' && c <= '9')) return number_end(p);
    if (c != '{' && c != '[') return literal(p, end);
    if (depth >= MAX_DEPTH) return NULL;
    char close = c == '{' ? '}' : ']';
    p = blanks(p + 1);
    if (*p == close) return p + 1;
    for (;;) {
        if (close == '}') {
            if (*p != '"' || !(p = string_end(p + 1, end, &escaped))) return NULL;
            p = blanks(p);
            if (*p != ':') return NULL;
            p = blanks(p + 1);
        }
        if (!(p = skip(p, end, depth + 1))) return NULL;
        p = blanks(p);
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
        p = blanks(p + 1);
    }
}

/* Reads an integer of at most 18 digits; returns its end, or NULL for any other value. */
static inline const char *integer(const char *p, int64_t *value) {
    int negative = *p == '-';
    const char *first = p += negative;
    int64_t v = 0;
    while (*p >= '0' && *p <= '9' && p - first < 18) v = v * 10 + (*p++ - '0');
    if (p == first || (*p >= '0' && *p <= '9') || *p == '.' || *p == 'e' || *p == 'E') return NULL;
    if (*first == '0' && p - first > 1) return NULL;
    *value = negative ? -v : v;
    return p;
}

/* Reads a time in us, rounded to ns; returns its end, or NULL if not a number below 10^15 us. */
static inline const char *time_ns(const char *p, int64_t *ns) {
    int negative = *p == '-';
    const char *first = p += negative;
    int64_t v = 0;
    while (*p >= '0' && *p <= '9' && p - first < 16) v = v * 10 + (*p++ - '0');
    if (p == first || (*p >= '0' && *p <= '9') || *p == 'e' || *p == 'E') return NULL;
    if ((*first == '0' && p - first > 1) || v >= 9000000000000000LL) return NULL;
    v *= 1000;
    if (*p == '.') {
        const char *fraction = ++p;
        int64_t unit = 100;
        int up = 0;
        for (; *p >= '0' && *p <= '9'; p++) {
            if (unit) v += (*p - '0') * unit;
            else if (p - fraction == 3) up = *p >= '5';
            unit /= 10;
        }
        if (p == fraction || *p == 'e' || *p == 'E') return NULL;
        v += up;
    }
    *ns = negative ? -v : v;
    return p;
}

/* --- events ---------------------------------------------------------------------------------- */

typedef struct {
    char phase;
    int rest, has_bp_e, has_triples, has_args;
    uint32_t category, name;
    int64_t ts, dur, pid, tid, id, correlation, external_id, device, stream, copied;
    int64_t registers, shared_memory;
    int64_t allocated, address, device_type, device_id, total_allocated, total_reserved;
    int32_t grid[3], block[3];
    const char *args, *args_end;
    const char *inputs[3], *inputs_end[3]; /* Input Dims, Input type, Concrete Inputs */
} event;

#define IS(literal) (length == sizeof(literal) - 1 && !memcmp(key, literal, sizeof(literal) - 1))

/* Reads an integer (null: absent); with any other value the event is left to Python. */
static inline const char *integer_or_rest(const char *p, const char *end, int64_t *value, event *e) {
    const char *q = integer(p, value);
    if (q) return q;
    if (*p != 'n') e->rest = 1;
    *value = NONE;
    return skip(p, end, 1);
}

static const char *triple(const char *p, const char *end, int32_t *xyz, event *e) {
    const char *start = p;
    if (*p != '[') goto odd;
    for (int i = 0; i < 3; i++) {
        int64_t v;
        p = integer(blanks(p + 1), &v);
        if (!p || v < 0 || v > INT32_MAX) goto odd;
        xyz[i] = (int32_t)v;
        p = blanks(p);
        if (*p != (i < 2 ? ',' : ']')) goto odd;
    }
    return p + 1;
odd:
    e->rest = 1;
    return skip(start, end, 1);
}

/* Keeps the place of a JSON text; an event with escapes in it is left to Python. */
static const char *inputs(const char *p, const char *end, event *e, int which) {
    const char *q = skip(p, end, 2);
    if (q && memchr(p, '\\', (size_t)(q - p))) e->rest = 1;
    e->inputs[which] = p;
    return e->inputs_end[which] = q;
}

static const char *argument(const char *key, size_t length, const char *p, const char *end, event *e) {
    switch (length) {
    case 4: if (IS("grid")) { e->has_triples |= 1; return triple(p, end, e->grid, e); }
            if (IS("Addr")) return integer_or_rest(p, end, &e->address, e);
            break;
    case 5: if (IS("block")) { e->has_triples |= 2; return triple(p, end, e->block, e); }
            if (IS("bytes")) return integer_or_rest(p, end, &e->copied, e);
            if (IS("Bytes")) return integer_or_rest(p, end, &e->allocated, e);
            break;
    case 6: if (IS("device")) return integer_or_rest(p, end, &e->device, e);
            if (IS("stream")) return integer_or_rest(p, end, &e->stream, e);
            break;
    case 9: if (IS("Device Id")) return integer_or_rest(p, end, &e->device_id, e);
            if (IS("copy kind")) e->rest = 1;
            break;
    case 10: if (IS("Input Dims")) return inputs(p, end, e, 0);
             if (IS("Input type")) return inputs(p, end, e, 1);
             break;
    case 11: if (IS("External id")) return integer_or_rest(p, end, &e->external_id, e);
             if (IS("correlation")) return integer_or_rest(p, end, &e->correlation, e);
             if (IS("Device Type")) return integer_or_rest(p, end, &e->device_type, e);
             if (IS("external id") || IS("memory kind")) e->rest = 1;
             break;
    case 13: if (IS("shared memory")) return integer_or_rest(p, end, &e->shared_memory, e);
             break;
    case 14: if (IS("Total Reserved")) return integer_or_rest(p, end, &e->total_reserved, e);
             break;
    case 15: if (IS("Concrete Inputs")) return inputs(p, end, e, 2);
             if (IS("Total Allocated")) return integer_or_rest(p, end, &e->total_allocated, e);
             if (IS("Collective name")) e->rest = 1;
             break;
    case 17: if (IS("traceanalyzer tid")) e->rest = 1;
             break;
    case 20: if (IS("registers per thread")) return integer_or_rest(p, end, &e->registers, e);
             break;
    }
    return skip(p, end, 2);
}

static const char *arguments(const char *p, const char *end, event *e) {
    if (e->has_args++) e->rest = 1; /* duplicate: only the last one counts */
    if (*p != '{') { e->rest |= *p != 'n'; return skip(p, end, 1); }
    p = blanks(p + 1);
    if (*p == '}') return p + 1;
    for (;;) {
        if (*p != '"') return NULL;
        const char *key = p + 1;
        if (!(p = string_end(key, end, &e->rest))) return NULL; /* an escaped key may be any key */
        size_t length = (size_t)(p - 1 - key);
        p = blanks(p);
        if (*p != ':') return NULL;
        if (!(p = argument(key, length, blanks(p + 1), end, e))) return NULL;
        p = blanks(p);
        if (*p == '}') return p + 1;
        if (*p != ',') return NULL;
        p = blanks(p + 1);
    }
}

/* Reads a string as a text code (null: no text); with any other value the event is left to Python. */
static const char *name_or_rest(scanner *s, const char *p, uint32_t *code, event *e) {
    *code = NO_CODE;
    if (*p != '"') { e->rest |= *p != 'n'; return skip(p, s->end, 1); }
    int escaped = 0;
    const char *end = string_end(p + 1, s->end, &escaped);
    if (end) *code = code_of(s, p + 1, (uint32_t)(end - p - 2));
    return end;
}

static const char *member(scanner *s, const char *key, size_t length, const char *p, event *e) {
    const char *end = s->end, *q;
    switch (length) {
    case 2: if (IS("ph")) {
                if (p[0] == '"' && p[1] && p[1] != '\\' && p[2] == '"') { e->phase = p[1]; return p + 3; }
                e->rest = 1;
            } else if (IS("ts") || (IS("id"))) {
                if (IS("id")) return integer_or_rest(p, end, &e->id, e);
                if ((q = time_ns(p, &e->ts))) return q;
                e->rest = 1;
            } else if (IS("bp")) {
                e->has_bp_e = p[0] == '"' && p[1] == 'e' && p[2] == '"';
            } else if (IS("sf")) {
                e->rest = 1;
            }
            break;
    case 3: if (IS("dur")) {
                if ((q = time_ns(p, &e->dur))) return q;
                e->rest = 1;
            } else if (IS("cat")) return name_or_rest(s, p, &e->category, e);
            else if (IS("pid")) return integer_or_rest(p, end, &e->pid, e);
            else if (IS("tid")) return integer_or_rest(p, end, &e->tid, e);
            else if (IS("id2")) e->rest = 1;
            break;
    case 4: if (IS("name")) return name_or_rest(s, p, &e->name, e);
            if (IS("args")) { e->args = p; return e->args_end = arguments(p, end, e); }
            break;
    case 7: if (IS("bind_id")) e->rest = 1;
            break;
    }
    return skip(p, end, 1);
}

static const char *object(scanner *s, const char *p, event *e) {
    *e = (event){.category = NO_CODE, .name = NO_CODE, .ts = NONE, .dur = NONE, .pid = NONE,
                 .tid = NONE, .id = NONE, .correlation = NONE, .external_id = NONE, .device = NONE,
                 .stream = NONE, .copied = NONE, .registers = NONE, .shared_memory = NONE,
                 .allocated = NONE, .address = NONE, .device_type = NONE, .device_id = NONE,
                 .total_allocated = NONE, .total_reserved = NONE};
    p = blanks(p + 1);
    if (*p == '}') return p + 1;
    for (;;) {
        if (*p != '"') return NULL;
        const char *key = p + 1;
        if (!(p = string_end(key, s->end, &e->rest))) return NULL;
        size_t length = (size_t)(p - 1 - key);
        p = blanks(p);
        if (*p != ':') return NULL;
        if (!(p = member(s, key, length, blanks(p + 1), e))) return NULL;
        p = blanks(p);
        if (*p == '}') return p + 1;
        if (*p != ',') return NULL;
        p = blanks(p + 1);
    }
}

static int in_windows(const scanner *s, const event *e) {
    if (!s->n_windows) return 1;
    uint64_t lasts = e->dur > 0 ? (uint64_t)e->dur : 0;
    for (Py_ssize_t i = 0; i < s->n_windows; i++) {
        int64_t from = s->windows[2 * i], to = s->windows[2 * i + 1];
        /* ts + dur may overflow int64, so the distance to the window's start is compared */
        if (e->ts < to && (e->ts > from || lasts > (uint64_t)from - (uint64_t)e->ts)) return 1;
    }
    return 0;
}

static enum outcome judge(const scanner *s, const event *e) {
    int category = e->category == NO_CODE ? s->absent : flags_at(s, e->category);
    int name = e->name == NO_CODE ? 0 : flags_at(s, e->name);
    if (e->phase == 's' || e->phase == 't' || e->phase == 'f') {
        if (!s->flows) return e->rest ? REST : SKIP;
        return e->rest || e->ts == NONE ? REST : FLOW;
    }
    /* not an event, such as the empty object at the end of JAX's array */
    if (!e->phase && !e->rest && e->name == NO_CODE && e->ts == NONE) return SKIP;
    if ((e->phase != 'X' && e->phase != 'i') || e->rest || e->ts == NONE) return REST;
    if (category & ESCAPED || (e->phase == 'X' && e->dur == NONE)) return REST;
    if (!s->all && name & MEMORY && category & OTHER) return REST; /* kind depends on the name */
    if (!s->all && !(category & WANTED)) {
        if (s->n_named && (name & ESCAPED)) return REST;
        if (!(name & NAMED)) return SKIP;
    }
    if (!in_windows(s, e)) return SKIP;
    return name & SPECIAL && !(category & DEVICE) ? REST : ROW;
}

/* Appends offset and length of a text; 0 and 0 without one. */
static int put_span(const scanner *s, column *c, const char *at, const char *end) {
    return put64(c, at ? at - s->begin : 0) && put64(c, at ? end - at : 0);
}

/* Appends the row and the codes of the JSON texts of the inputs, if the event has any. */
static int put_inputs(scanner *s, const event *e, uint32_t row) {
    const int wanted[3] = {s->input_dims, s->input_types, s->concrete_inputs};
    int known[3], any = 0, ok = 1;
    for (int i = 0; i < 3; i++) {
        known[i] = wanted[i] && e->inputs[i] && e->inputs_end[i] && *e->inputs[i] != 'n';
        any |= known[i];
    }
    if (!any) return 1;
    for (int i = 0; i < 3 && ok; i++) {
        uint32_t length = known[i] ? (uint32_t)(e->inputs_end[i] - e->inputs[i]) : 0;
        if (wanted[i]) ok = put32(&s->out[INPUT_DIMS + i], known[i] ? code_of(s, e->inputs[i], length) : NO_CODE);
    }
    return ok && put32(&s->out[INPUT_ROWS], row);
}

static int put_row(scanner *s, const event *e, uint32_t order) {
    column *o = s->out;
    uint32_t row = s->rows++;
    int ok = put32(&o[ORDER], order) && put64(&o[TS], e->ts) && put64(&o[DUR], e->dur)
        && put32(&o[CATEGORY], e->category) && put32(&o[NAME], e->name)
        && put64(&o[PID], e->pid) && put64(&o[TID], e->tid)
        && put64(&o[CORRELATION], e->correlation) && put64(&o[EXTERNAL_ID], e->external_id);
    if (ok && s->args) ok = put_span(s, &o[ARGS], e->args, e->args_end);
    int category = e->category == NO_CODE ? s->absent : flags_at(s, e->category);
    int name = e->name == NO_CODE ? (s->n_inputs_of ? 0 : INPUTS) : flags_at(s, e->name);
    if (ok && name & INPUTS) ok = put_inputs(s, e, row);
    if (ok && name & MEMORY && e->allocated != NONE)
        ok = put32(&o[MEMORY_ROWS], row) && put64(&o[ALLOCATED], e->allocated)
            && put64(&o[ADDRESS], e->address == NONE ? -1 : e->address)
            && put64(&o[DEVICE_TYPE], e->device_type) && put64(&o[DEVICE_ID], e->device_id)
            && put64(&o[TOTAL_ALLOCATED], e->total_allocated)
            && put64(&o[TOTAL_RESERVED], e->total_reserved);
    if (!ok || !(category & DEVICE)) return ok;
    if (name & SPECIAL && !put32(&o[SPECIAL_ROWS], row)) return 0;
    ok = put32(&o[DEVICE_ROWS], row) && put64(&o[DEVICE_NO], e->device)
        && put64(&o[STREAM], e->stream == NONE ? e->tid : e->stream) && put64(&o[COPIED], e->copied);
    if (!ok || !(e->has_triples & 1)) return ok;
    int32_t unknown[3] = {-1, -1, -1};
    return put32(&o[KERNEL_ROWS], row) && put(&o[GRID], e->grid, 12)
        && put(&o[BLOCK], e->has_triples & 2 ? e->block : unknown, 12)
        && put64(&o[REGISTERS], e->registers) && put64(&o[SHARED_MEMORY], e->shared_memory);
}

static int put_flow(scanner *s, const event *e, uint32_t order) {
    column *o = s->out;
    uint32_t row = s->flow_rows++;
    if (e->phase == 'f' && !e->has_bp_e && !put32(&o[FLOW_NEXT], row)) return 0;
    return put32(&o[FLOW_ORDER], order) && put(&o[FLOW_PHASE], &e->phase, 1)
        && put64(&o[FLOW_TS], e->ts) && put32(&o[FLOW_CATEGORY], e->category)
        && put32(&o[FLOW_NAME], e->name) && put64(&o[FLOW_PID], e->pid)
        && put64(&o[FLOW_TID], e->tid) && put64(&o[FLOW_ID], e->id);
}

/* Scans events up to the end or a `]`; surrounding commas and blanks are ignored, as the text is
 * part of a larger one. Returns the number of events, or -1: not strict JSON. */
static int64_t run(scanner *s, int64_t *closed) {
    const char *p = blanks(s->begin);
    uint32_t order = 0;
    while (*p == ',') p = blanks(p + 1);
    *closed = -1;
    while (p < s->end) {
        event e;
        const char *start = p;
        if (*p == ']') { *closed = p + 1 - s->begin; break; }
        if (*p != '{' || !(p = object(s, p, &e)) || p > s->end) return -1;
        if (e.phase == 'i') e.dur = NONE; /* an instant: a duration is ignored */
        if (!e.rest && (e.phase == 'X' || e.phase == 'i') && e.ts != NONE && e.ts < s->first) s->first = e.ts;
        int ok = 1;
        switch (judge(s, &e)) {
        case ROW: ok = put_row(s, &e, order); break;
        case FLOW: ok = put_flow(s, &e, order); break;
        case REST:
            ok = put64(&s->out[RESTS], start - s->begin) && put64(&s->out[RESTS], p - start)
                && put64(&s->out[RESTS], order);
            break;
        case SKIP: break;
        }
        if (!ok || s->out_of_memory) { s->out_of_memory = 1; return -1; }
        order++;
        p = blanks(p);
        if (*p == ',') {
            p = blanks(p + 1);
            if (*p == ']' || *p == ',') return -1; /* an extra comma: left to Python */
        } else if (p < s->end && *p != ']') {
            return -1;
        }
    }
    for (uint32_t i = 0; i < s->names.count; i++) {
        const text *t = &s->names.all[i];
        if (!put64(&s->out[TEXTS], t->at - s->begin) || !put64(&s->out[TEXTS], t->length)) {
            s->out_of_memory = 1;
            return -1;
        }
    }
    return order;
}

/* --- Python ---------------------------------------------------------------------------------- */

/* Reads names from a list of bytes or of (bytes, flags). The list must outlive them. */
static word *read_names(PyObject *list, Py_ssize_t *count) {
    *count = PyList_Size(list);
    if (*count < 0) return NULL;
    word *all = calloc((size_t)*count + 1, sizeof *all);
    if (!all) { PyErr_NoMemory(); return NULL; }
    for (Py_ssize_t i = 0; i < *count; i++) {
        PyObject *item = PyList_GetItem(list, i);
        char *at;
        int bad;
        if (PyTuple_Check(item)) {
            bad = !PyArg_ParseTuple(item, "y#i", &at, &all[i].length, &all[i].flags);
        } else {
            bad = PyBytes_AsStringAndSize(item, &at, &all[i].length) < 0;
        }
        if (bad) { free(all); return NULL; }
        all[i].at = at;
    }
    return all;
}

static PyObject *columns(scanner *s, int64_t events, int64_t closed) {
    PyObject *list = PyList_New(COLUMNS);
    if (!list) return NULL;
    for (int i = 0; i < COLUMNS; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(s->out[i].data, (Py_ssize_t)s->out[i].used);
        if (!bytes) { Py_DECREF(list); return NULL; }
        PyList_SetItem(list, i, bytes);
    }
    return Py_BuildValue("LLLN", (long long)events, (long long)closed, (long long)s->first, list);
}

PyDoc_STRVAR(scan_doc,
"scan(text, begin, categories, other, absent, special, named, windows, flows, all, args,\n"
"     input_dims, input_types, concrete_inputs, inputs_of)\n--\n\n"
"Scan the ordinary events of text[begin:] into columns; None if it is not strict JSON.\n\n"
"Args: categories is a list of (lower-case spelling, flags), other and absent are the flags of any\n"
"other and of no category (1 wanted, 2 device); special are lower-case substrings of names whose\n"
"events are left to Python; named are substrings of names to keep whatever the category; windows are\n"
"(start, end) in ns, flat, as int64 bytes; args: whether to return their offsets; input_dims,\n"
"input_types and concrete_inputs: whether to return the codes of their JSON texts; inputs_of: the\n"
"names of the events that have them, empty for all.\n"
"Returns (events, offset after a closing bracket or -1, earliest time, columns as bytes).");

static PyObject *scan(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *source, *categories, *special, *named, *inputs_of;
    Py_ssize_t begin, window_bytes;
    const char *window_data;
    char *data;
    Py_ssize_t size;
    scanner s = {0};
    if (!PyArg_ParseTuple(args, "O!nO!iiO!O!y#ppppppO!:scan", &PyBytes_Type, &source, &begin,
                          &PyList_Type, &categories, &s.other, &s.absent, &PyList_Type, &special,
                          &PyList_Type, &named, &window_data, &window_bytes, &s.flows, &s.all,
                          &s.args, &s.input_dims, &s.input_types, &s.concrete_inputs,
                          &PyList_Type, &inputs_of))
        return NULL;
    if (PyBytes_AsStringAndSize(source, &data, &size) < 0) return NULL;
    if (begin < 0 || begin > size || window_bytes % 16 || size >= UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "scan: argument out of range");
        return NULL;
    }
    PyObject *result = NULL;
    s.begin = data + begin; s.end = data + size; s.first = INT64_MAX;
    s.n_windows = window_bytes / 16;
    s.categories = read_names(categories, &s.n_categories);
    s.special = s.categories ? read_names(special, &s.n_special) : NULL;
    s.named = s.special ? read_names(named, &s.n_named) : NULL;
    s.inputs_of = s.named ? read_names(inputs_of, &s.n_inputs_of) : NULL;
    s.windows = s.inputs_of ? malloc((size_t)window_bytes + 8) : NULL;
    if (s.windows) {
        int64_t events, closed;
        memcpy(s.windows, window_data, (size_t)window_bytes);
        Py_BEGIN_ALLOW_THREADS
        events = run(&s, &closed);
        Py_END_ALLOW_THREADS
        if (s.out_of_memory) result = PyErr_NoMemory();
        else if (events < 0) { result = Py_None; Py_INCREF(result); }
        else result = columns(&s, events, closed);
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    for (int i = 0; i < COLUMNS; i++) free(s.out[i].data);
    free(s.names.all); free(s.names.slots);
    free(s.categories); free(s.special); free(s.named); free(s.inputs_of); free(s.windows);
    return result;
}

static PyMethodDef methods[] = {{"scan", scan, METH_VARARGS, scan_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_scan",
    "Strict scan of Chrome trace events into columns.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__scan(void) { return PyModuleDef_Init(&module); }
