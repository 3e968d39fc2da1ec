/* Numbers the frames of collapsed stacks, without a Python object per frame.
 *
 * One function, numbered(). The input has one stack per line, its frames separated by semicolons;
 * nothing else is interpreted, so any input is valid. All reads stay below end.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *at; uint32_t length, hash; } text;

typedef struct {
    text *all;
    uint32_t count, room;
    uint32_t *slots; /* number of the text + 1; 0: free */
    uint32_t mask;
} texts;

typedef struct { uint32_t *data; size_t used, room; } numbers;

static int put(numbers *n, uint32_t value) {
    if (n->used == n->room) {
        size_t room = n->room ? n->room * 2 : 1 << 14;
        uint32_t *data = realloc(n->data, room * sizeof *data);
        if (!data) return 0;
        n->data = data; n->room = room;
    }
    n->data[n->used++] = value;
    return 1;
}

static uint32_t hash_of(const char *at, uint32_t length) {
    uint64_t h = 0x9E3779B97F4A7C15ull ^ length, w;
    uint32_t i = 0;
    for (; i + 8 <= length; i += 8) {
        memcpy(&w, at + i, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93ull; h ^= h >> 32;
    }
    if (i < length) {
        w = 0; memcpy(&w, at + i, length - i);
        h = (h ^ w) * 0xD6E8FEB86659FD93ull; h ^= h >> 32;
    }
    return (uint32_t)(h ^ (h >> 29));
}

static int grow(texts *t) {
    uint32_t room = t->room ? t->room * 2 : 1024, size = room * 2;
    text *all = realloc(t->all, room * sizeof *all);
    if (!all) return 0;
    t->all = all; t->room = room;
    uint32_t *slots = calloc(size, sizeof *slots);
    if (!slots) return 0;
    free(t->slots);
    t->slots = slots; t->mask = size - 1;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t at = all[i].hash & t->mask;
        while (slots[at]) at = (at + 1) & t->mask;
        slots[at] = i + 1;
    }
    return 1;
}

/* Returns the number of a text, assigned at its first appearance; UINT32_MAX: out of memory. */
static uint32_t number_of(texts *t, const char *at, uint32_t length) {
    if (t->count == t->room && !grow(t)) return UINT32_MAX;
    uint32_t hash = hash_of(at, length), slot = hash & t->mask;
    for (; t->slots[slot]; slot = (slot + 1) & t->mask) {
        const text *known = &t->all[t->slots[slot] - 1];
        if (known->hash == hash && known->length == length && !memcmp(known->at, at, length))
            return t->slots[slot] - 1;
    }
    t->all[t->count] = (text){at, length, hash};
    t->slots[slot] = t->count + 1;
    return t->count++;
}

/* Returns the first semicolon or line end at or after p, or end. */
static const char *frame_end(const char *p, const char *end) {
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - p >= 8) { /* 8 bytes at a time; only the lowest bit set is exact */
        uint64_t w; memcpy(&w, p, 8);
        uint64_t a = w ^ 0x3B3B3B3B3B3B3B3Bull, b = w ^ 0x0A0A0A0A0A0A0A0Aull;
        uint64_t hit = (((a - 0x0101010101010101ull) & ~a) | ((b - 0x0101010101010101ull) & ~b))
                     & 0x8080808080808080ull;
        if (hit) return p + (__builtin_ctzll(hit) >> 3);
        p += 8;
    }
#endif
    while (p < end && *p != ';' && *p != '\n') p++;
    return p;
}

static int run(const char *p, const char *end, texts *t, numbers *frames, numbers *lengths) {
    uint32_t length = 0;
    for (;;) {
        const char *behind = frame_end(p, end);
        uint32_t number = number_of(t, p, (uint32_t)(behind - p));
        if (number == UINT32_MAX || !put(frames, number)) return 0;
        length++;
        if (behind == end || *behind == '\n') {
            if (!put(lengths, length)) return 0;
            if (behind == end) return 1;
            length = 0;
        }
        p = behind + 1;
    }
}

PyDoc_STRVAR(numbered_doc,
"numbered(stacks)\n--\n\n"
"Number the frames of stacks, one stack per line, in order of first appearance.\n\n"
"Returns (distinct frames, number of each frame, frame count of each line), the latter two as\n"
"uint32 bytes.");

static PyObject *numbered(PyObject *module, PyObject *stacks) {
    (void)module;
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(stacks, &data, &size) < 0) return NULL;
    if (size >= UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "numbered: text exceeds 4 GiB");
        return NULL;
    }
    texts t = {0};
    numbers frames = {0}, lengths = {0};
    PyObject *result = NULL;
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run(data, data + size, &t, &frames, &lengths);
    Py_END_ALLOW_THREADS
    PyObject *distinct = done ? PyList_New(t.count) : PyErr_NoMemory();
    for (uint32_t i = 0; distinct && i < t.count; i++) {
        PyObject *frame = PyBytes_FromStringAndSize(t.all[i].at, t.all[i].length);
        if (!frame || PyList_SetItem(distinct, i, frame) < 0) { Py_DECREF(distinct); distinct = NULL; }
    }
    if (distinct)
        result = Py_BuildValue("Ny#y#", distinct,
                               (const char *)frames.data, (Py_ssize_t)(frames.used * sizeof(uint32_t)),
                               (const char *)lengths.data, (Py_ssize_t)(lengths.used * sizeof(uint32_t)));
    free(t.all); free(t.slots); free(frames.data); free(lengths.data);
    return result;
}

static PyMethodDef methods[] = {{"numbered", numbered, METH_O, numbered_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_frames",
    "Frames of collapsed stacks to numbers.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__frames(void) { return PyModuleDef_Init(&module); }
