/* Reads Perfetto's protobuf: packets() finds the packets of a trace, texts() writes track events as
 * events of Chrome's JSON, which the parser of that format turns into tables.
 *
 * Without it no Perfetto trace is read. Every read is checked against the end of its message; a
 * damaged message ends there. Encoding:
 * https://protobuf.dev/programming-guides/encoding/; field numbers: google/perfetto's
 * protos/perfetto/trace.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NOTHING INT64_MIN
#define DEEPEST 64 /* levels of arguments */
#define LONGEST 10 /* bytes of a varint */

typedef const unsigned char *bytes;

enum { VARINT, FIXED64, DELIMITED, GROUP, END_GROUP, FIXED32 };
/* Columns of packets(), and the bits of KIND. */
enum { AT, LENGTH, TS, SEQUENCE, FLAGS, CLOCK, KIND, EVENT, EVENT_LENGTH, TYPE, TRACK, VALUE, WIDTH };
enum { IS_EVENT = 1, IS_STATE = 2, HAS_EXTRA = 4, HAS_FLOWS = 8, IS_OTHER = 16, IS_DOUBLE = 32,
       HAS_VALUE = 64, IS_BAD = 128 };

typedef struct { uint32_t number, type; uint64_t value; bytes data; } field;

static inline bytes varint(bytes p, bytes end, uint64_t *value) {
    if (p < end && *p < 0x80) { *value = *p; return p + 1; } /* most of them */
    if (end - p > LONGEST) end = p + LONGEST;
    uint64_t v = 0;
    for (int shift = 0; p < end; shift += 7) {
        v |= (uint64_t)(*p & 0x7F) << shift;
        if (!(*p++ & 0x80)) { *value = v; return p; }
    }
    return NULL;
}

/* Reads one field; returns its end, or NULL if it is damaged. */
static inline bytes next(bytes p, bytes end, field *f) {
    uint64_t key;
    if (!(p = varint(p, end, &key)) || key >> 3 == 0 || key >> 32) return NULL;
    f->number = (uint32_t)(key >> 3);
    f->type = key & 7;
    f->data = p;
    Py_ssize_t size = f->type == FIXED64 ? 8 : 4;
    switch (f->type) {
    case VARINT: return varint(p, end, &f->value);
    case FIXED64: case FIXED32:
        if (end - p < size) return NULL;
        f->value = 0;
        memcpy(&f->value, p, (size_t)size); /* little-endian, as all machines it runs on */
        return p + size;
    case DELIMITED:
        if (!(p = varint(p, end, &f->value)) || f->value > (uint64_t)(end - p)) return NULL;
        f->data = p;
        return p + f->value;
    default: return NULL; /* groups do not occur */
    }
}

/* --- packets() ------------------------------------------------------------------------------- */

static void read_event(bytes p, bytes end, int64_t *row) {
    field f;
    while (p < end) {
        if (!(p = next(p, end, &f))) { row[KIND] |= IS_BAD; return; }
        switch (f.number) {
        case 9: row[TYPE] = (int64_t)f.value; break;
        case 11: row[TRACK] = (int64_t)f.value; break;
        case 30: row[VALUE] = (int64_t)f.value; row[KIND] |= HAS_VALUE; break;
        case 44: row[VALUE] = (int64_t)f.value; row[KIND] |= HAS_VALUE | IS_DOUBLE; break;
        case 12: case 46: row[KIND] |= HAS_EXTRA; break;
        case 36: case 42: case 47: case 48: row[KIND] |= HAS_FLOWS; break;
        }
    }
}

static void read_packet(bytes p, bytes end, bytes start, int64_t *row) {
    field f;
    while (p < end) {
        if (!(p = next(p, end, &f))) { row[KIND] |= IS_BAD; return; }
        switch (f.number) {
        case 8: row[TS] = (int64_t)f.value; break;
        case 10: row[SEQUENCE] = (int64_t)(uint32_t)f.value; break;
        case 13: row[FLAGS] |= (int64_t)f.value; break;
        case 41: row[FLAGS] |= f.value != 0; break;
        case 58: row[CLOCK] = (int64_t)(uint32_t)f.value; break;
        case 11:
            if (f.type != DELIMITED) { row[KIND] |= IS_BAD; return; }
            row[KIND] |= IS_EVENT;
            row[EVENT] = f.data - start;
            row[EVENT_LENGTH] = (int64_t)f.value;
            read_event(f.data, f.data + f.value, row);
            break;
        case 6: case 12: case 43: case 44: case 50: case 52: case 53: case 59: case 60:
            row[KIND] |= IS_STATE;
            break;
        case 3: case 42: case 79: case 87: case 98: break; /* of the packet itself */
        default: row[KIND] |= IS_OTHER;
        }
    }
}

#define BLOCK 256 /* rows that are appended to the columns at a time */

/* Appends rows to the columns, which have room for `*room` rows; returns 0 without memory. */
static int append(PyObject **columns, int64_t rows[BLOCK][WIDTH], Py_ssize_t n, Py_ssize_t done,
                  Py_ssize_t *room) {
    int grows = done + n > *room;
    if (grows) *room = 2 * (done + n);
    for (int i = 0; i < WIDTH; i++) {
        if (grows && PyByteArray_Resize(columns[i], *room * 8) < 0) return 0;
        int64_t *column = (int64_t *)PyByteArray_AsString(columns[i]) + done;
        for (Py_ssize_t row = 0; row < n; row++) column[row] = rows[row][i];
    }
    return 1;
}

static PyObject *packets(PyObject *self, PyObject *args) {
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data)) return NULL;
    bytes start = data.buf, p = start, end = start + data.len;
    PyObject *columns[WIDTH], *out = PyTuple_New(WIDTH);
    int good = out != NULL;
    for (int i = 0; good && i < WIDTH; i++) {
        columns[i] = PyByteArray_FromStringAndSize(NULL, 0);
        good = columns[i] && PyTuple_SetItem(out, i, columns[i]) == 0; /* owns the column */
    }
    int64_t rows[BLOCK][WIDTH];
    Py_ssize_t n = 0, done = 0, room = 0;
    while (good && p < end) {
        field f;
        bytes after = next(p, end, &f);
        if (!after) break;
        p = after;
        if (f.number != 1 || f.type != DELIMITED) continue;
        int64_t *row = rows[n++];
        memset(row, 0, sizeof *rows);
        row[AT] = f.data - start;
        row[LENGTH] = (int64_t)f.value;
        row[TS] = row[CLOCK] = row[TRACK] = NOTHING;
        read_packet(f.data, f.data + f.value, start, row);
        /* a packet that says nothing is no row: millions of them compress to almost nothing */
        if (done + n > 1 && !row[KIND] && !row[FLAGS] && row[TS] == NOTHING) n--;
        if (n == BLOCK) {
            good = append(columns, rows, n, done, &room);
            done += n;
            n = 0;
        }
    }
    good = good && append(columns, rows, n, done, &room);
    for (int i = 0; good && i < WIDTH; i++)
        good = PyByteArray_Resize(columns[i], (done + n) * 8) == 0;
    PyBuffer_Release(&data);
    if (good) return Py_BuildValue("Nn", out, (Py_ssize_t)(p - start));
    Py_XDECREF(out);
    return NULL;
}

/* --- texts() --------------------------------------------------------------------------------- */

typedef struct { char *data; size_t size, room; int failed; } text;

static inline void put(text *t, const void *data, size_t n) {
    if (t->failed) return;
    if (t->size + n > t->room) {
        size_t room = (t->size + n) * 2;
        char *more = realloc(t->data, room);
        if (!more) { t->failed = 1; return; }
        t->data = more;
        t->room = room;
    }
    memcpy(t->data + t->size, data, n);
    t->size += n;
}

#define PUT(t, literal) put(t, literal, sizeof(literal) - 1)

static void put_unsigned(text *t, uint64_t value, int width) {
    char digits[20];
    int n = 20;
    do { digits[--n] = (char)('0' + value % 10); } while ((value /= 10) || 20 - n < width);
    put(t, digits + n, (size_t)(20 - n));
}

static void put_integer(text *t, int64_t value) {
    if (value < 0) PUT(t, "-");
    put_unsigned(t, value < 0 ? -(uint64_t)value : (uint64_t)value, 1);
}

/* Writes nanoseconds as microseconds. */
static void put_time(text *t, int64_t ns) {
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    if (ns < 0) PUT(t, "-");
    put_unsigned(t, size / 1000, 1);
    PUT(t, ".");
    put_unsigned(t, size % 1000, 3);
}

static void put_inner(text *t, bytes p, size_t n) {
    static const char HEX[] = "0123456789abcdef";
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = p[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        put(t, p + begin, i - begin);
        begin = i + 1;
        char escape[6] = {'\\', 'u', '0', '0', HEX[c >> 4], HEX[c & 15]};
        put(t, escape, 6);
    }
    put(t, p + begin, n - begin);
}

static void put_text(text *t, bytes p, size_t n) {
    PUT(t, "\"");
    put_inner(t, p, n);
    PUT(t, "\"");
}

static void put_double(text *t, uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    if (value != value || value - value != 0) { PUT(t, "null"); return; }
    PyGILState_STATE gil = PyGILState_Ensure(); /* texts() has released it */
    char *digits = PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, NULL);
    if (digits) put(t, digits, strlen(digits));
    else t->failed = 1;
    PyMem_Free(digits);
    PyGILState_Release(gil);
}

/* Texts by id as wire.py packs them: their number, rows in order of id, then the texts. */
typedef struct { int64_t id, at, size; } entry;
typedef struct { bytes data; int64_t count; } table;

static table table_of(PyObject *packed) {
    table result = {(bytes)PyBytes_AsString(packed), 0};
    memcpy(&result.count, result.data, 8);
    return result;
}

/* Finds a text; returns 0 if the id is unknown. */
static int find(const table *of, int64_t id, bytes *data, size_t *size) {
    int64_t low = 0, high = of->count;
    entry e;
    if (id > 0 && id <= high) { /* ids mostly count from 1 */
        memcpy(&e, of->data + 8 + (size_t)(id - 1) * sizeof e, sizeof e);
        if (e.id == id) low = high = id - 1;
    }
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        memcpy(&e, of->data + 8 + (size_t)middle * sizeof e, sizeof e);
        if (e.id < id) low = middle + 1;
        else high = middle;
    }
    if (low >= of->count) return 0;
    memcpy(&e, of->data + 8 + (size_t)low * sizeof e, sizeof e);
    if (e.id != id) return 0;
    *data = of->data + e.at;
    *size = (size_t)e.size;
    return 1;
}

/* Writes an interned text, which is JSON already; returns 0 if the id is unknown. */
static int put_interned(text *t, const table *of, uint64_t id) {
    bytes data;
    size_t size;
    if (!find(of, (int64_t)id, &data, &size)) return 0;
    put(t, data, size);
    return 1;
}

#define LENGTHS 256
/* Names of the arguments to write, each with its length before it, by length; none: all. */
typedef struct { bytes of_length[LENGTHS + 1]; } argument_names;

static argument_names names_of(PyObject *packed) {
    argument_names result;
    bytes p = (bytes)PyBytes_AsString(packed), end = p + PyBytes_Size(packed);
    for (int length = 0; length <= LENGTHS; length++) {
        while (p < end && *p < length) p += 1 + *p;
        result.of_length[length] = p;
    }
    return result;
}

/* Interned texts of an event, and what is counted. */
typedef struct {
    table categories, names, keys, strings, no_inputs;
    bytes kinds, kinds_end; /* names of arguments and the categories they imply */
    const argument_names *wanted;
    text category; /* of the event that is written */
    Py_ssize_t unknown;
} state;

static int put_annotation(text *t, state *s, bytes p, bytes end, int depth, int named);

/* Writes the repeated fields `number` of a message as an object or a list. */
static int put_children(text *t, state *s, bytes p, bytes end, uint32_t number, int depth) {
    field f;
    int count = 0, whole = 1;
    while (p < end) {
        if (!(p = next(p, end, &f))) return 0;
        if (f.number != number || f.type != DELIMITED) continue;
        if (count++) PUT(t, ",");
        whole &= put_annotation(t, s, f.data, f.data + f.value, depth, number != 12);
    }
    return whole;
}

static void put_name(text *t, state *s, const field *name) {
    if (name->number == 10) put_text(t, name->data, name->value);
    else if (name->number == 0 || !put_interned(t, &s->keys, name->value)) {
        s->unknown++;
        PUT(t, "\"\"");
    }
}

/* Writes one argument, `"name":value` or a value; returns 0 if it is damaged. */
static int put_annotation(text *t, state *s, bytes p, bytes end, int depth, int named) {
    field f, name = {0}, value = {0};
    bytes begin = p;
    while (p < end) {
        if (!(p = next(p, end, &f))) break;
        if (f.number == 1 || f.number == 10) name = f;
        else if ((f.number >= 2 && f.number <= 12) || f.number == 17) value = f;
    }
    int whole = p != NULL;
    if (name.number == 10 && name.type != DELIMITED) name.number = 0;
    if (named) {
        put_name(t, s, &name);
        PUT(t, ":");
    }
    int texts = value.number == 6 || value.number == 9;
    int children = value.number == 11 || value.number == 12;
    if ((texts || children) != (value.type == DELIMITED) || depth >= DEEPEST) value.number = 0;
    switch (value.number) {
    case 2: if (value.value) PUT(t, "true"); else PUT(t, "false"); break;
    case 3: case 7: put_unsigned(t, value.value, 1); break;
    case 4: put_integer(t, (int64_t)value.value); break;
    case 5: put_double(t, value.value); break;
    case 6: case 9: put_text(t, value.data, value.value); break;
    case 11:
        PUT(t, "{");
        whole &= put_children(t, s, begin, end, 11, depth + 1);
        PUT(t, "}");
        break;
    case 12:
        PUT(t, "[");
        whole &= put_children(t, s, begin, end, 12, depth + 1);
        PUT(t, "]");
        break;
    case 17:
        if (put_interned(t, &s->strings, value.value)) break;
        s->unknown++;
        /* fall through */
    default: PUT(t, "null");
    }
    return whole;
}

/* Whether an argument is to be written: all, or those whose name is wanted or interned. */
static int is_wanted(const state *s, bytes p, bytes end) {
    const bytes *wanted = s->wanted->of_length;
    field f;
    if (wanted[0] == wanted[LENGTHS]) return 1;
    while (p < end && (p = next(p, end, &f))) {
        if (f.number == 1) return 1;
        if (f.number != 10 || f.type != DELIMITED) continue;
        if (f.value >= LENGTHS) return 0;
        for (bytes w = wanted[f.value]; w < wanted[f.value + 1]; w += 1 + f.value)
            if (!memcmp(w + 1, f.data, f.value)) return 1;
        return 0;
    }
    return 0;
}

/* Finds the name of an event, unless it is known already. */
static void find_name(bytes p, bytes end, field *name) {
    field f;
    while (!name->number && p < end && (p = next(p, end, &f)))
        if ((f.number == 10 || f.number == 23) && (f.type == DELIMITED) == (f.number == 23))
            *name = f;
}

/* Writes the arguments of an event, and returns its categories. */
static void put_arguments(text *t, state *s, bytes p, bytes end, int *count, text *categories) {
    field f;
    while (p < end && (p = next(p, end, &f))) {
        switch (f.number) {
        case 4:
            if (f.type != DELIMITED || !is_wanted(s, f.data, f.data + f.value)) break;
            if ((*count)++) PUT(t, ",");
            put_annotation(t, s, f.data, f.data + f.value, 0, 1);
            break;
        case 22:
            if (f.type != DELIMITED) break;
            if (categories->size) PUT(categories, ",");
            put_inner(categories, f.data, f.value);
            break;
        case 3: {
            bytes known;
            size_t size;
            if (f.type != VARINT) break;
            if (!find(&s->categories, (int64_t)f.value, &known, &size)) s->unknown++;
            else {
                if (categories->size) PUT(categories, ",");
                put(categories, known + 1, size - 2); /* without its quotes */
            }
            break;
        }
        }
    }
}

/* Writes the category that an argument of an event implies, if any. */
static void put_implied(text *t, const state *s, bytes p, bytes end) {
    field f, name;
    while (p < end && (p = next(p, end, &f))) {
        if (f.number != 4 || f.type != DELIMITED) continue;
        bytes q = f.data, last = f.data + f.value;
        while (q < last && (q = next(q, last, &name))) {
            bytes key = name.data;
            size_t size = name.value;
            if (name.number == 1) {
                if (!find(&s->keys, (int64_t)name.value, &key, &size)) continue;
                key++;
                size -= 2;
            } else if (name.number != 10 || name.type != DELIMITED) continue;
            for (bytes k = s->kinds; k < s->kinds_end; k += 2 + k[0] + k[1])
                if (k[0] == size && !memcmp(k + 2, key, size)) {
                    PUT(t, ",\"cat\":");
                    put(t, k + 2 + k[0], k[1]);
                    return;
                }
        }
    }
}

/* Columns of the rows of texts(). */
enum { R_TS, R_DUR, R_AT, R_LENGTH, R_END_AT, R_END_LENGTH, R_TRACK, R_STATE, R_WIDTH };
#define INSTANT -1

static void put_event(text *t, state *s, bytes data, const int64_t *row, const table *tracks,
                      const argument_names wanted[2]) {
    text *categories = &s->category;
    bytes begin = data + row[R_AT], begin_end = begin + row[R_LENGTH];
    bytes end = data + row[R_END_AT], end_end = end + row[R_END_LENGTH];
    field name = {0};
    int count = 0;
    bytes args = NULL;
    size_t n_args = 0;
    find_name(begin, begin_end, &name);
    find_name(end, end_end, &name);
    bytes known;
    size_t size;
    int no_inputs = name.number == 10 && find(&s->no_inputs, (int64_t)name.value, &known, &size);
    s->wanted = &wanted[no_inputs];
    if (row[R_DUR] == INSTANT) PUT(t, "{\"ph\":\"i\",");
    else PUT(t, "{\"ph\":\"X\",");
    put_interned(t, &tracks[0], (uint64_t)row[R_TRACK]);
    PUT(t, ",\"ts\":");
    put_time(t, row[R_TS]);
    if (row[R_DUR] >= 0) {
        PUT(t, ",\"dur\":");
        put_time(t, row[R_DUR]);
    }
    PUT(t, ",\"args\":{");
    if (find(&tracks[1], row[R_TRACK], &args, &n_args)) put(t, args, n_args);
    count = n_args > 0;
    categories->size = 0;
    put_arguments(t, s, begin, begin_end, &count, categories);
    put_arguments(t, s, end, end_end, &count, categories);
    PUT(t, "}");
    if (name.number == 23) {
        PUT(t, ",\"name\":");
        put_text(t, name.data, name.value);
    } else if (name.number == 10) {
        PUT(t, ",\"name\":");
        if (!put_interned(t, &s->names, name.value)) { s->unknown++; PUT(t, "null"); }
    }
    if (categories->size) {
        PUT(t, ",\"cat\":\"");
        put(t, categories->data, categories->size);
        PUT(t, "\"");
    } else {
        put_implied(t, s, begin, begin_end);
    }
    PUT(t, "},\n");
    t->failed |= categories->failed;
}

#define TABLES 5 /* of a state */

/* Writes the events of all rows; returns 0 if a row is outside of the data or the tables. */
static int put_rows(text *t, state *s, const Py_buffer *data, const Py_buffer *rows,
                    const table *tracks, const table *states, Py_ssize_t n_states,
                    const argument_names wanted[2]) {
    Py_ssize_t count = rows->len / (R_WIDTH * 8);
    for (Py_ssize_t i = 0; i < count && !t->failed; i++) {
        int64_t row[R_WIDTH];
        memcpy(row, (char *)rows->buf + i * sizeof row, sizeof row);
        if (row[R_AT] < 0 || row[R_LENGTH] < 0 || row[R_AT] + row[R_LENGTH] > data->len ||
            row[R_END_AT] < 0 || row[R_END_LENGTH] < 0 ||
            row[R_END_AT] + row[R_END_LENGTH] > data->len ||
            row[R_STATE] < 0 || row[R_STATE] >= n_states)
            return 0;
        const table *of = states + row[R_STATE] * TABLES;
        s->categories = of[0];
        s->names = of[1];
        s->keys = of[2];
        s->strings = of[3];
        s->no_inputs = of[4];
        put_event(t, s, data->buf, row, tracks, wanted);
    }
    return 1;
}

static PyObject *texts(PyObject *self, PyObject *args) {
    Py_buffer data, rows;
    PyObject *ids, *arguments, *packed, *kinds, *all, *few;
    if (!PyArg_ParseTuple(args, "y*y*O!O!O!O!O!O!", &data, &rows, &PyBytes_Type, &ids,
                          &PyBytes_Type, &arguments, &PyTuple_Type, &packed, &PyBytes_Type, &kinds,
                          &PyBytes_Type, &all, &PyBytes_Type, &few))
        return NULL;
    text t = {0};
    state s = {.kinds = (bytes)PyBytes_AsString(kinds)};
    s.kinds_end = s.kinds + PyBytes_Size(kinds);
    const argument_names wanted[2] = {names_of(all), names_of(few)};
    const table tracks[2] = {table_of(ids), table_of(arguments)};
    Py_ssize_t n = PyTuple_Size(packed);
    table *states = malloc((size_t)(n + 1) * sizeof *states);
    for (Py_ssize_t i = 0; states && i < n; i++) states[i] = table_of(PyTuple_GetItem(packed, i));
    int inside = 1;
    if (states) {
        Py_BEGIN_ALLOW_THREADS
        inside = put_rows(&t, &s, &data, &rows, tracks, states, n / TABLES, wanted);
        Py_END_ALLOW_THREADS
    }
    PyObject *result = NULL;
    if (!inside) PyErr_SetString(PyExc_ValueError, "bad row");
    else if (!states || t.failed) PyErr_NoMemory();
    else result = Py_BuildValue("y#n", t.data ? t.data : "", (Py_ssize_t)t.size, s.unknown);
    free(states);
    free(s.category.data);
    free(t.data);
    PyBuffer_Release(&data);
    PyBuffer_Release(&rows);
    return result;
}

/* --- flows() --------------------------------------------------------------------------------- */

#define MOST_ARROWS 1024 /* of an event; see wire.py */

/* Puts the arrows of an event: its row, the id, and whether the arrow ends here; returns the
 * number of arrows, of which the first ones are put. */
static Py_ssize_t put_flows(text *t, bytes p, bytes end, int64_t row) {
    Py_ssize_t count = 0;
    field f;
    while (p < end && (p = next(p, end, &f))) {
        int ends = f.number == 42 || f.number == 48;
        if (f.number != 36 && f.number != 47 && !ends) continue;
        bytes list = f.data, list_end = f.data + (f.type == DELIMITED ? f.value : 0);
        do { /* repeated fields may be packed */
            if (f.type == DELIMITED) {
                if (list >= list_end) break;
                if (f.number > 42 && list_end - list >= 8) {
                    memcpy(&f.value, list, 8); /* little-endian, as all machines it runs on */
                    list += 8;
                } else if (f.number > 42 || !(list = varint(list, list_end, &f.value))) break;
            }
            int64_t point[3] = {row, (int64_t)f.value, ends};
            if (count++ < MOST_ARROWS) put(t, point, sizeof point);
        } while (f.type == DELIMITED);
    }
    return count;
}

static PyObject *flows(PyObject *self, PyObject *args) {
    Py_buffer data, rows;
    if (!PyArg_ParseTuple(args, "y*y*", &data, &rows)) return NULL;
    text t = {0};
    Py_ssize_t left_out = 0;
    for (Py_ssize_t i = 0; i < rows.len / 16; i++) {
        int64_t range[2];
        memcpy(range, (char *)rows.buf + i * 16, 16);
        if (range[0] < 0 || range[1] < 0 || range[0] + range[1] > data.len) continue;
        bytes p = (bytes)data.buf + range[0];
        Py_ssize_t count = put_flows(&t, p, p + range[1], i);
        if (count > MOST_ARROWS) left_out += count - MOST_ARROWS;
    }
    PyObject *result = t.failed ? PyErr_NoMemory()
        : Py_BuildValue("y#n", t.data ? t.data : "", (Py_ssize_t)t.size, left_out);
    free(t.data);
    PyBuffer_Release(&data);
    PyBuffer_Release(&rows);
    return result;
}

static PyMethodDef METHODS[] = {
    {"flows", flows, METH_VARARGS, "Return row, id and end of arrows of track events; number left out."},
    {"packets", packets, METH_VARARGS, "Return the rows of all packets, and the end of the last."},
    {"texts", texts, METH_VARARGS, "Return track events as JSON, and the number of unknown ids."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_wire", NULL, 0, METHODS,
                                    NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__wire(void) { return PyModule_Create(&MODULE); }
