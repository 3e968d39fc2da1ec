/* Reads integer columns of a table from the pages of an SQLite file.
 *
 * Two functions: children() for interior pages, and numbers() for leaf pages. Both support ordinary
 * tables only; on anything else (text instead of a number, a row that is shorter than the table, a
 * cell outside its page) they return None, and the caller uses SQLite. File format:
 * https://www.sqlite.org/fileformat2.html. All reads stay inside their page.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define INTERIOR 5
#define LEAF 13
#define MOST_COLUMNS 32
#define NOTHING INT64_MIN /* in place of NULL */

typedef const unsigned char *bytes;

static uint32_t be16(bytes p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t be32(bytes p) { return be16(p) << 16 | be16(p + 2); }

/* Reads a varint of at most 9 bytes; returns its end, or NULL if it exceeds `end`. */
static bytes varint(bytes p, bytes end, uint64_t *value) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        if (p >= end) return NULL;
        v = v << 7 | (*p & 0x7F);
        if (!(*p++ & 0x80)) { *value = v; return p; }
    }
    if (p >= end) return NULL;
    *value = v << 8 | *p++;
    return p;
}

/* Returns the bytes of a payload that are on the page itself; the rest is on overflow pages. */
static uint64_t local(uint64_t payload, uint64_t usable) {
    if (payload <= usable - 35) return payload;
    uint64_t least = (usable - 12) * 32 / 255 - 23;
    uint64_t size = least + (payload - least) % (usable - 4);
    return size <= usable - 35 ? size : least;
}

static int64_t integer(bytes p, uint64_t type) {
    switch (type) {
    case 1: return (int8_t)p[0];
    case 2: return (int16_t)be16(p);
    case 3: return (int32_t)(be16(p) << 16 | (uint32_t)p[2] << 8) >> 8;
    case 4: return (int32_t)be32(p);
    case 5: return (int64_t)((uint64_t)be16(p) << 48 | (uint64_t)be32(p + 2) << 16) >> 16;
    default: return (int64_t)((uint64_t)be32(p) << 32 | be32(p + 4));
    }
}

static const unsigned char SIZES[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};

/* Reads the wanted columns of one row into out[column][row]; returns 0 if it is not ordinary. */
static int row(bytes cell, bytes end, uint64_t usable, const uint16_t *wanted, Py_ssize_t count,
               Py_ssize_t key, int64_t **out, Py_ssize_t at, uint32_t *nulls) {
    uint64_t payload, id, header, type;
    bytes p = varint(cell, end, &payload);
    if (!p || !(p = varint(p, end, &id))) return 0;
    uint64_t local_size = local(payload, usable);
    if (local_size > (uint64_t)(end - p)) return 0;
    bytes stop = p + local_size, h = varint(p, stop, &header);
    if (!h || header > local_size) return 0;
    bytes types_end = p + header;
    uint64_t data = header;
    uint16_t column = 0;
    for (Py_ssize_t i = 0; i < count; column++) {
        if (h >= types_end) return 0;
        if (*h < 0x80) type = *h++;
        else if (!(h = varint(h, types_end, &type))) return 0;
        uint64_t size = type < 10 ? SIZES[type] : type < 12 ? 0 : (type - 12) / 2;
        if (column == wanted[i]) {
            int64_t value;
            if (type == 0) {
                value = i == key ? (int64_t)id : NOTHING;
                if (i != key) *nulls |= 1u << i;
            } else if (type == 8 || type == 9) value = (int64_t)type - 8;
            else if (type < 7) {
                if (data + size > local_size) return 0;
                value = integer(p + data, type);
                if (value == NOTHING) return 0;
            } else return 0;
            out[i++][at] = value;
        }
        if (size > local_size) data = local_size + 1; /* on overflow pages, like all that follows */
        else if (data <= local_size) data += size;
    }
    return 1;
}

/* Counts the rows of all pages; -1 if a page is not an ordinary leaf of a table. */
static Py_ssize_t counted(bytes pages, Py_ssize_t size, Py_ssize_t page, uint64_t usable,
                          Py_ssize_t count) {
    Py_ssize_t rows = 0;
    for (bytes p = pages; p < pages + size; p += page) {
        uint64_t cells = be16(p + 3);
        /* a row takes a byte per column and three more: more rows cannot be valid */
        if (p[0] != LEAF || 8 + cells * (2 + (uint64_t)count + 3) > usable) return -1;
        rows += (Py_ssize_t)cells;
    }
    return rows;
}

static int filled(bytes pages, Py_ssize_t size, Py_ssize_t page, uint64_t usable,
                  const uint16_t *wanted, Py_ssize_t count, Py_ssize_t key, int64_t **out,
                  uint32_t *nulls) {
    Py_ssize_t at = 0;
    for (bytes p = pages; p < pages + size; p += page) {
        uint32_t cells = be16(p + 3);
        for (uint32_t i = 0; i < cells; i++) {
            uint32_t place = be16(p + 8 + 2 * i);
            if (place < 8 + 2 * cells || place >= usable) return 0;
            if (!row(p + place, p + usable, usable, wanted, count, key, out, at++, nulls)) return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(numbers_doc,
"numbers(pages, page_size, usable, columns, key, /)\n--\n\n"
"Return (int64 bytes of each column, bit set of columns with nulls) of leaf pages, or None.\n\n"
"columns: uint16 numbers, ascending; key: index of the row id column, -1 for none.\n"
"Null is the smallest int64.");

static PyObject *numbers(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer pages, columns;
    Py_ssize_t page, usable, key;
    if (!PyArg_ParseTuple(args, "y*nny*n", &pages, &page, &usable, &columns, &key)) return NULL;
    PyObject *answer = NULL, *held = NULL;
    uint16_t wanted[MOST_COLUMNS];
    int64_t *out[MOST_COLUMNS];
    uint32_t nulls = 0;
    Py_ssize_t count = columns.len / 2, rows = -1;
    int ok = 0;
    if (page < 512 || usable < 480 || usable > page || pages.len % page || count > MOST_COLUMNS) {
        PyErr_SetString(PyExc_ValueError, "partial pages, or too many columns");
        goto done;
    }
    memcpy(wanted, columns.buf, (size_t)count * 2);
    Py_BEGIN_ALLOW_THREADS
    rows = counted(pages.buf, pages.len, page, (uint64_t)usable, count);
    Py_END_ALLOW_THREADS
    if (rows < 0) goto nothing;
    held = PyTuple_New(count);
    if (!held) goto done;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *column = PyBytes_FromStringAndSize(NULL, rows * 8);
        if (!column) goto done;
        out[i] = (int64_t *)PyBytes_AsString(column);
        PyTuple_SetItem(held, i, column);
    }
    Py_BEGIN_ALLOW_THREADS
    ok = filled(pages.buf, pages.len, page, (uint64_t)usable, wanted, count, key, out, &nulls);
    Py_END_ALLOW_THREADS
    if (ok) {
        answer = Py_BuildValue("(OI)", held, nulls);
        goto done;
    }
nothing:
    answer = Py_NewRef(Py_None);
done:
    Py_XDECREF(held);
    PyBuffer_Release(&pages);
    PyBuffer_Release(&columns);
    return answer;
}

PyDoc_STRVAR(children_doc,
"children(pages, page_size, usable, /)\n--\n\n"
"Return the child page numbers of a table's interior pages, in order, as uint32 bytes; None for\n"
"other pages.");

static PyObject *children(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer pages;
    Py_ssize_t page, usable, total = 0;
    if (!PyArg_ParseTuple(args, "y*nn", &pages, &page, &usable)) return NULL;
    PyObject *answer = NULL;
    if (page < 512 || usable < 480 || usable > page || pages.len % page) {
        PyErr_SetString(PyExc_ValueError, "partial pages");
        goto done;
    }
    bytes first = pages.buf, last = first + pages.len;
    for (bytes p = first; p < last; p += page) {
        Py_ssize_t cells = be16(p + 3);
        if (p[0] != INTERIOR || 12 + 2 * cells > usable) goto nothing;
        total += cells + 1;
    }
    answer = PyBytes_FromStringAndSize(NULL, total * 4);
    if (!answer) goto done;
    char *to = PyBytes_AsString(answer);
    for (bytes p = first; p < last; p += page) {
        uint32_t cells = be16(p + 3), child;
        for (uint32_t i = 0; i <= cells; i++) {
            if (i == cells) child = be32(p + 8); /* the rightmost is in the header */
            else {
                uint32_t place = be16(p + 12 + 2 * i);
                if (place + 4 > (uint64_t)usable) {
                    Py_CLEAR(answer);
                    goto nothing;
                }
                child = be32(p + place);
            }
            memcpy(to, &child, 4);
            to += 4;
        }
    }
    goto done;
nothing:
    answer = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&pages);
    return answer;
}

static PyMethodDef methods[] = {
    {"numbers", numbers, METH_VARARGS, numbers_doc},
    {"children", children, METH_VARARGS, children_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_pages", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__pages(void) { return PyModule_Create(&module); }
