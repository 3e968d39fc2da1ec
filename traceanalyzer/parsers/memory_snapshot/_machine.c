/* Unpickles a CUDA memory snapshot into columns, without an object graph.
 *
 * A virtual machine for the few opcodes that real snapshots use. Values are 64-bit words (a tag in
 * the low four bits); dicts with a known key become rows of a table, lists of frames become interned
 * sequences. Without it plain.py gives the same result. There is no recursion, every read stays below
 * end, and memory is limited by the number of bytes read.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include "_machine_store.h"
#include "_machine_values.h"

enum {
    OP_MARK = '(', OP_EMPTY_TUPLE = ')', OP_STOP = '.', OP_BINFLOAT = 'G', OP_BININT = 'J',
    OP_BININT1 = 'K', OP_BININT2 = 'M', OP_NONE = 'N', OP_BINUNICODE = 'X', OP_EMPTY_LIST = ']',
    OP_APPEND = 'a', OP_APPENDS = 'e', OP_BINGET = 'h', OP_LONG_BINGET = 'j', OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r', OP_SETITEM = 's', OP_TUPLE = 't', OP_SETITEMS = 'u', OP_EMPTY_DICT = '}',
    OP_PROTO = 0x80, OP_TUPLE1 = 0x85, OP_TUPLE2, OP_TUPLE3, OP_NEWTRUE, OP_NEWFALSE, OP_LONG1,
    OP_SHORT_BINUNICODE = 0x8c, OP_MEMOIZE = 0x94, OP_FRAME
};
/* Bytes of an opcode with the fixed-length part of its argument; 0: rejected. */
static const uint8_t sizes[256] = {
    [OP_MARK] = 1, [OP_EMPTY_TUPLE] = 1, [OP_STOP] = 1, [OP_BINFLOAT] = 9, [OP_BININT] = 5,
    [OP_BININT1] = 2, [OP_BININT2] = 3, [OP_NONE] = 1, [OP_BINUNICODE] = 5, [OP_EMPTY_LIST] = 1,
    [OP_APPEND] = 1, [OP_APPENDS] = 1, [OP_BINGET] = 2, [OP_LONG_BINGET] = 5, [OP_BINPUT] = 2,
    [OP_LONG_BINPUT] = 5, [OP_SETITEM] = 1, [OP_TUPLE] = 1, [OP_SETITEMS] = 1, [OP_EMPTY_DICT] = 1,
    [OP_PROTO] = 2, [OP_TUPLE1] = 1, [OP_TUPLE2] = 1, [OP_TUPLE3] = 1, [OP_NEWTRUE] = 1,
    [OP_NEWFALSE] = 1, [OP_LONG1] = 2, [OP_SHORT_BINUNICODE] = 2, [OP_MEMOIZE] = 1, [OP_FRAME] = 9,
};

static uint32_t le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static int integer(machine *m, const uint8_t *p, unsigned length, word *value) {
    uint64_t parts[2] = {0, 0}, number;
    if (length && p[length - 1] & 0x80) parts[0] = parts[1] = ~0ull;
    memcpy(parts, p, length < 8 ? length : 8);
    if (length > 8) parts[1] = (uint64_t)(int64_t)(int8_t)p[8];
    else parts[1] = parts[0] >> 63 ? ~0ull : 0;
    uint64_t upper = parts[0] >> 59;
    if ((upper == 0 && parts[1] == 0) || (upper == 31 && parts[1] == ~0ull)) {
        *value = WORD(INT, parts[0]);
        return 1;
    }
    if (!intern(m, &m->bigs, parts, sizeof parts, &number)) return 0;
    *value = WORD(BIG, number);
    return 1;
}

static int real(machine *m, const uint8_t *p, word *value) {
    uint8_t turned[8];
    uint64_t number;
    for (int i = 0; i < 8; i++) turned[i] = p[7 - i];
    if (!intern(m, &m->floats, turned, 8, &number)) return 0;
    *value = WORD(FLOAT, number);
    return 1;
}

/* Opcodes with a mark below their items. */
static int marked(machine *m, unsigned op) {
    if (!m->open_marks) return fail(m, NO_MARK, op);
    size_t mark = m->marks[--m->open_marks];
    if (op == OP_TUPLE) {
        if (m->stack.used > mark) return tuple(m, m->stack.used - mark);
        if (!fit(m, &m->stack, mark + 1, 8)) return 0;
        WORDS(m->stack)[m->stack.used++] = EMPTY;
        return 1;
    }
    if (mark == floor_of(m)) return fail(m, TOO_FEW, op);
    return op == OP_APPENDS ? append(m, mark - 1) : set(m, mark - 1);
}

static int stop(machine *m) {
    if (m->stack.used != 1 || m->open_marks) return fail(m, LEFT_OVER, m->stack.used);
    m->root = settled(m, WORDS(m->stack)[0]);
    m->stopped = 1;
    return 1;
}

/* Opcodes that do not push a new value. */
static int step(machine *m, unsigned op, const uint8_t *p) {
    size_t height = m->stack.used - floor_of(m);
    switch (op) {
    case OP_MARK:
        if (m->open_marks == MOST_MARKS) return fail(m, MARKS, 0);
        m->marks[m->open_marks++] = m->stack.used;
        return 1;
    case OP_APPENDS: case OP_SETITEMS: case OP_TUPLE: return marked(m, op);
    case OP_MEMOIZE: return height ? put(m, m->stored) : fail(m, TOO_FEW, op);
    case OP_BINPUT: return height ? put(m, p[1]) : fail(m, TOO_FEW, op);
    case OP_LONG_BINPUT: return height ? put(m, le32(p + 1)) : fail(m, TOO_FEW, op);
    case OP_APPEND: return height > 1 ? append(m, m->stack.used - 2) : fail(m, TOO_FEW, op);
    case OP_SETITEM: return height > 2 ? set(m, m->stack.used - 3) : fail(m, TOO_FEW, op);
    case OP_TUPLE1: case OP_TUPLE2: case OP_TUPLE3: {
        size_t count = op - OP_TUPLE1 + 1;
        return height >= count ? tuple(m, count) : fail(m, TOO_FEW, op);
    }
    case OP_FRAME: return 1; /* bytes to read ahead: not needed */
    case OP_STOP: return stop(m);
    case OP_PROTO:
        if (m->at) return fail(m, PROTO_AGAIN, 0);
        if (p[1] < 2 || p[1] > 5) return fail(m, PROTOCOL, p[1]);
        m->protocol = p[1];
        return 1;
    }
    return fail(m, OPCODE, op);
}

#define HERE(size) (m->at = m->consumed + (uint64_t)(p - start), m->behind = m->at + (size))
#define DO(size, call) do { HERE(size); m->stack.used = (size_t)(top - WORDS(m->stack)); \
        if (!(call)) return p; \
        top = WORDS(m->stack) + m->stack.used; } while (0)

/* Runs complete opcodes from start on; returns the first that is incomplete or wrong. */
static const uint8_t *run(machine *m, const uint8_t *start, const uint8_t *end) {
    const uint8_t *p = start;
    word *top = WORDS(m->stack) + m->stack.used, value = NONE;
    uint64_t index;
    if (p < end && !m->consumed && *p != OP_PROTO) {
        HERE(1); fail(m, START, *p);
        return p;
    }
    while (p < end && !m->stopped) {
        unsigned op = *p;
        size_t size = sizes[op], length;
        if ((size_t)(end - p) < size) break;
        switch (op) {
        case OP_LONG_BINGET: index = le32(p + 1); goto get;
        case OP_BINGET:
            index = p[1];
        get:
            if (index < m->memo.used && TAG(value = WORDS(m->memo)[index]) < OPEN) break;
            DO(size, fetch(m, index, &value));
            break;
        case OP_BININT: value = WORD(INT, (int64_t)(int32_t)le32(p + 1)); break;
        case OP_BININT1: value = WORD(INT, p[1]); break;
        case OP_BININT2: value = WORD(INT, p[1] | p[2] << 8); break;
        case OP_NONE: value = NONE; break;
        case OP_NEWTRUE: value = WORD(BOOL, 1); break;
        case OP_NEWFALSE: value = WORD(BOOL, 0); break;
        case OP_EMPTY_TUPLE: value = EMPTY; break;
        case OP_EMPTY_LIST: value = OPENED(NEW_LIST, 0); break;
        case OP_EMPTY_DICT: value = OPENED(NEW_DICT, 0); break;
        case OP_BINFLOAT: DO(size, real(m, p + 1, &value)); break;
        case OP_LONG1:
            length = p[1];
            if (length > MOST_BIG) DO(size, fail(m, INTEGER, length));
            if ((size_t)(end - p) < size + length) goto out;
            DO(size + length, integer(m, p + size, (unsigned)length, &value));
            size += length;
            break;
        case OP_BINUNICODE: length = le32(p + 1); goto text;
        case OP_SHORT_BINUNICODE:
            length = p[1];
        text:
            if (length > MOST_TEXT) DO(size, fail(m, TEXT, length));
            if ((size_t)(end - p) < size + length) goto out;
            DO(size + length, intern(m, &m->strings, p + size, length, &index));
            value = WORD(STR, index);
            size += length;
            break;
        default:
            DO(size, step(m, op, p));
            p += size;
            continue;
        }
        if (top == WORDS(m->stack) + m->stack.room)
            DO(size, fit(m, &m->stack, m->stack.used + 1, 8));
        *top++ = value;
        p += size;
    }
out:
    m->stack.used = (size_t)(top - WORDS(m->stack));
    return p;
}

/* ---- Python interface ---- */

/* Bytes of the opcode at p, or as many as are needed to know its length. */
static size_t length_of(const uint8_t *p, size_t have) {
    size_t size = sizes[*p] ? sizes[*p] : 1, length = 0;
    if (have < size) return size;
    if (*p == OP_LONG1) length = p[1] > MOST_BIG ? 0 : p[1];
    else if (*p == OP_SHORT_BINUNICODE) length = p[1];
    else if (*p == OP_BINUNICODE) length = le32(p + 1) > MOST_TEXT ? 0 : le32(p + 1);
    return size + length;
}

static int keep(machine *m, const uint8_t *p, size_t size) {
    store *s = &m->pending;
    if (s->used + size > s->room) { /* at most twice the bytes fed: within the limit */
        size_t room = s->room ? s->room : 64;
        while (room < s->used + size) room *= 2;
        void *at = realloc(s->at, room);
        if (!at) return fail(m, NO_MEMORY, 0);
        s->at = at; s->room = room;
    }
    memcpy((uint8_t *)s->at + s->used, p, size);
    s->used += size;
    return 1;
}

static void read_block(machine *m, const uint8_t *p, const uint8_t *end) {
    while (m->pending.used && p < end && !m->problem) { /* one opcode, in parts */
        const uint8_t *first = m->pending.at;
        size_t need = length_of(first, m->pending.used), more = 0;
        if (need > m->pending.used) {
            more = need - m->pending.used;
            if (more > (size_t)(end - p)) more = (size_t)(end - p);
            if (!keep(m, p, more)) return;
            p += more;
            first = m->pending.at;
        }
        if (m->pending.used < length_of(first, m->pending.used)) continue;
        size_t done = (size_t)(run(m, first, first + m->pending.used) - first);
        m->consumed += done;
        m->pending.used -= done; /* 0 unless there is a problem */
    }
    if (m->problem) return;
    if (!m->stopped) {
        const uint8_t *behind = run(m, p, end);
        m->consumed += (uint64_t)(behind - p);
        p = behind;
        if (!m->problem && !m->stopped && p < end) keep(m, p, (size_t)(end - p));
    }
    if (m->stopped) m->trailing += (uint64_t)(end - p);
}

static PyObject *outcome(machine *m) {
    if (m->problem == NO_MEMORY) return PyErr_NoMemory();
    if (m->problem) return Py_BuildValue("(iKK)", m->problem, m->argument, m->at);
    return Py_NewRef(Py_None);
}

static int is_idle(machine *m) {
    if (!m->busy && !m->taken) return 1;
    PyErr_SetString(PyExc_ValueError, m->taken ? "the machine is closed" : "the machine is busy");
    return 0;
}

static PyObject *feed(PyObject *self, PyObject *block) {
    machine *m = (machine *)self;
    Py_buffer view;
    /* a buffer may run Python code that uses the machine: check the state afterwards */
    if (PyObject_GetBuffer(block, &view, PyBUF_SIMPLE) < 0) return NULL;
    if (!is_idle(m)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    if (!m->problem && view.len) {
        m->busy = 1;
        Py_BEGIN_ALLOW_THREADS
        read_block(m, view.buf, (const uint8_t *)view.buf + view.len);
        Py_END_ALLOW_THREADS
        m->busy = 0;
    }
    PyBuffer_Release(&view);
    return outcome(m);
}

static PyObject *finish(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    machine *m = (machine *)self;
    if (!is_idle(m)) return NULL;
    if (!m->problem && !m->stopped) salvage(m);
    return outcome(m);
}

static PyObject *taken_bytes(const void *at, size_t size) {
    return PyBytes_FromStringAndSize(at, (Py_ssize_t)size);
}

/* Returns the texts of a pool as a list of bytes. */
static PyObject *text_list(const pool *q) {
    PyObject *list = PyList_New((Py_ssize_t)q->ends.used);
    for (size_t i = 0; list && i < q->ends.used; i++) {
        size_t size;
        const uint8_t *at = entry(q, i, &size);
        PyObject *text = taken_bytes(at, size);
        if (!text || PyList_SetItem(list, (Py_ssize_t)i, text) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *pool_words(pool *q) {
    PyObject *ends = taken_bytes(NULL, (q->ends.used + 1) * 8);
    if (!ends) return NULL;
    uint64_t *to = (uint64_t *)(void *)PyBytes_AsString(ends);
    to[0] = 0;
    for (size_t i = 0; i < q->ends.used; i++) to[i + 1] = ((uint64_t *)q->ends.at)[i] / 8;
    return Py_BuildValue("(NN)", ends, taken_bytes(q->bytes.at, q->bytes.used));
}

/* Returns the offsets, in items of `each` words, and the words, each chain contiguous. */
static PyObject *chain_words(const chains *c, size_t each) {
    size_t count = c->chains.used, filled = 0;
    PyObject *ends = taken_bytes(NULL, (count + 1) * 8), *all = taken_bytes(NULL, c->words.used * 8);
    if (!ends || !all) { Py_XDECREF(ends); Py_XDECREF(all); return NULL; }
    uint64_t *end = (uint64_t *)(void *)PyBytes_AsString(ends);
    word *to = (word *)(void *)PyBytes_AsString(all);
    const piece *pieces = c->pieces.at;
    end[0] = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint64_t next = ((chain *)c->chains.at)[i].first; next; next = pieces[next - 1].next) {
            const piece *part = pieces + next - 1;
            memcpy(to + filled, WORDS(c->words) + part->start, part->count * 8);
            filled += part->count;
        }
        end[i + 1] = filled / each;
    }
    return Py_BuildValue("(NN)", ends, all);
}

/* Returns the columns of a table, None if no row has the field; frees each column at once. */
static PyObject *table_columns(machine *m, size_t number) {
    table *t = &m->tables[number];
    size_t rows = number ? t->rows : m->frames.ends.used;
    PyObject *columns = PyTuple_New((Py_ssize_t)t->fields);
    for (size_t i = 0; columns && i < t->fields; i++) {
        int has = number ? t->columns[i] != NULL : (int)(t->seen >> i & 1);
        PyObject *column = has ? taken_bytes(number ? t->columns[i] : NULL, rows * 8)
                               : Py_NewRef(Py_None);
        if (column && has && !number) {
            word *to = (word *)(void *)PyBytes_AsString(column);
            for (size_t row = 0; row < rows; row++)
                to[row] = WORDS(m->frames.bytes)[row * t->fields + i];
        }
        free(t->columns[i]); t->columns[i] = NULL;
        if (!column || PyTuple_SetItem(columns, (Py_ssize_t)i, column) < 0) Py_CLEAR(columns);
    }
    return columns ? Py_BuildValue("(nN)", (Py_ssize_t)rows, columns) : NULL;
}

static void release(machine *m) {
    pool *pools[] = {&m->strings, &m->bigs, &m->floats, &m->sequences, &m->frames};
    store *stores[] = {&m->stack, &m->memo, &m->scratch, &m->pending,
                       &m->lists.words, &m->lists.pieces, &m->lists.chains,
                       &m->dicts.words, &m->dicts.pieces, &m->dicts.chains};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) drop_pool(pools[i]);
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++) drop(stores[i]);
    for (size_t i = 0; i < m->count; i++)
        for (size_t j = 0; j < MOST_FIELDS; j++) {
            free(m->tables[i].columns[j]); m->tables[i].columns[j] = NULL;
        }
    free(m->triggers); free(m->fields);
    m->triggers = NULL; m->fields = NULL;
    m->allocated = 0;
}

PyDoc_STRVAR(take_doc,
"take()\n--\n\n"
"Return all values read, and free the machine's memory: texts, large integers and floats as bytes,\n"
"sequences, lists, dicts, tables, root, complete, consumed, protocol, trailing.");

static PyObject *take(PyObject *self, PyObject *Py_UNUSED(nothing)) {
    machine *m = (machine *)self;
    if (!is_idle(m)) return NULL;
    m->taken = 1;
    drop(&m->stack); drop(&m->memo); drop(&m->scratch);
    PyObject *tables = PyTuple_New((Py_ssize_t)m->count);
    for (size_t i = 0; tables && i < m->count; i++) {
        PyObject *columns = table_columns(m, i);
        if (!columns || PyTuple_SetItem(tables, (Py_ssize_t)i, columns) < 0) Py_CLEAR(tables);
    }
    PyObject *result = !tables ? NULL : Py_BuildValue("(NNNNNNNKiKiK)",
        text_list(&m->strings), text_list(&m->bigs), text_list(&m->floats), pool_words(&m->sequences),
        chain_words(&m->lists, 1), chain_words(&m->dicts, 2), tables, m->root, m->stopped,
        m->consumed, m->protocol, m->trailing);
    release(m);
    return result;
}

static PyObject *allocated_bytes(PyObject *self, void *Py_UNUSED(closure)) {
    machine *m = (machine *)self;
    return PyLong_FromUnsignedLongLong(m->allocated + m->pending.room);
}

static int set_keys(machine *m, PyObject *keys) {
    m->keys = (size_t)PyTuple_Size(keys);
    for (size_t i = 0; i < m->keys; i++) {
        char *text;
        Py_ssize_t size;
        uint64_t number;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(keys, (Py_ssize_t)i), &text, &size) < 0) return 0;
        if (!intern(m, &m->strings, text, (size_t)size, &number)) { PyErr_NoMemory(); return 0; }
        if (number != i) { PyErr_SetString(PyExc_ValueError, "a key twice"); return 0; }
    }
    m->triggers = calloc(m->keys + 1, sizeof *m->triggers);
    m->fields = malloc(m->keys * m->count + 1);
    if (!m->triggers || !m->fields) { PyErr_NoMemory(); return 0; }
    memset(m->fields, -1, m->keys * m->count);
    return 1;
}

static int set_table(machine *m, size_t number, PyObject *given) {
    PyObject *fields;
    Py_ssize_t trigger;
    if (!PyArg_ParseTuple(given, "nO!", &trigger, &PyTuple_Type, &fields)) return 0;
    Py_ssize_t count = PyTuple_Size(fields);
    if (trigger < 0 || (size_t)trigger >= m->keys || count < 1 || count > MOST_FIELDS) goto wrong;
    m->triggers[trigger] |= (uint16_t)(1u << number);
    m->tables[number].fields = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t key = PyLong_AsSsize_t(PyTuple_GetItem(fields, i));
        if (PyErr_Occurred()) return 0;
        if (key < 0 || (size_t)key >= m->keys) goto wrong;
        m->fields[number * m->keys + (size_t)key] = (int8_t)i;
    }
    return 1;
wrong:
    PyErr_SetString(PyExc_ValueError, "a table's keys are numbers of keys, at most 64");
    return 0;
}

static PyObject *new_machine(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *keys, *tables;
    unsigned long long seed;
    if (!PyArg_ParseTuple(args, "O!O!K", &PyTuple_Type, &keys, &PyTuple_Type, &tables, &seed))
        return NULL;
    Py_ssize_t count = PyTuple_Size(tables);
    if (count < 1 || count > MOST_TABLES) {
        PyErr_SetString(PyExc_ValueError, "1 to 16 tables");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    machine *m = (machine *)allocate(type, 0);
    if (!m) return NULL;
    m->seed = seed; m->count = (size_t)count;
    int done = set_keys(m, keys);
    for (Py_ssize_t i = 0; done && i < count; i++) {
        PyObject *table = PyTuple_GetItem(tables, i);
        done = PyTuple_Check(table) && set_table(m, (size_t)i, table);
        if (!done && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a table is a tuple");
    }
    if (!done) Py_CLEAR(m);
    return (PyObject *)m;
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    release((machine *)self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"feed", feed, METH_O, "feed(block, /)\n--\n\nRead on: None, or (problem, its number, offset)."},
    {"finish", finish, METH_NOARGS, "finish()\n--\n\nThe file ends here: None, or a problem."},
    {"take", take, METH_NOARGS, take_doc},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef properties[] = {{"allocated_bytes", allocated_bytes, NULL, "Bytes of memory in use.", NULL}, {0}};
static PyType_Slot slots[] = {
    {Py_tp_new, new_machine}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, methods},
    {Py_tp_getset, properties}, {Py_tp_doc, "Machine(keys, tables, seed, /)\n--\n\nReads one pickle."},
    {0, NULL},
};
static PyType_Spec spec = {
    "traceanalyzer.parsers.memory_snapshot._machine.Machine", sizeof(machine), 0,
    Py_TPFLAGS_DEFAULT, slots,
};

static int fill(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    int done = type ? PyModule_AddObjectRef(module, "Machine", type) : -1;
    Py_XDECREF(type);
    return done;
}
static PyModuleDef_Slot parts[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_machine", .m_slots = parts,
};

PyMODINIT_FUNC PyInit__machine(void) { return PyModuleDef_Init(&module); }
