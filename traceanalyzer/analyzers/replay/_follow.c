/* Follows the programs of all ranks: when each call and each piece of work starts and ends.
 *
 * One function, follow(), the same as in follow.py, which describes its arguments. They are arrays
 * of 8 bytes per value; each size and each index is checked before anything is followed, so that
 * all reads and writes stay inside. A time that is not known yet is not a number.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLAN, BOUNDS, SIZES, THREAD, MEETING, CALL, AFTER, GROUP, FOLLOWS_AT, FOLLOWS, AWAITS_AT,
    AWAITS, BEGUN, WAITS, BEFORE, SPENT, TAIL, FIRST, LATENCY, LAG, REST, TOOK, TRANSFER,
    START, END, CALLS, DONE, BOUND, BLOCKED, LATE, ARGUMENTS
};

/* How many values each argument has: p: of the plan; b: ranks + 1; m: meetings; c: calls;
 * r: rows of work; C, R: one more; n: calls and rows; *: any number. */
static const char sizes[] = "pbmccrrrR*C*rcccccrrrrrrrccrcn";

typedef struct {
    const int64_t *plan, *thread, *meeting, *call, *after, *group, *follows_at, *follows,
                  *awaits_at, *awaits, *waits;
    const double *begun, *before, *spent, *tail, *first, *latency, *lag, *rest, *took, *transfer;
    double *start, *end, *begin, *done;
    int64_t *bound, *blocked, *late;
    int64_t calls, rows, ranks, meetings, threads;
    double *last, *is_free;                /* of meetings: last arrival; of threads */
    int64_t *missing, *who, *members;      /* of meetings; the members are a list in link */
    int64_t *link;                         /* of calls and rows */
    int64_t *waiting, *next, *needs, *at, *until, *met, *ready; /* of meetings, of ranks */
    int64_t queued, taken;
} job;

static void wake(job *j, int64_t key) {
    for (int64_t rank = j->waiting[key]; rank >= 0; rank = j->next[rank]) {
        j->needs[rank] = -1;
        j->ready[j->queued++ % j->ranks] = rank;
    }
    j->waiting[key] = -1;
}

/* Sets the ends of all members that have arrived. */
static void complete(job *j, int64_t key) {
    j->missing[key] = 0;
    for (int64_t one = j->members[key]; one >= 0; one = j->link[one]) {
        j->late[one] = j->who[key];
        if (one >= j->calls) j->end[one - j->calls] = j->last[key] + j->transfer[one - j->calls];
    }
    j->members[key] = -1;
    wake(j, key);
}

static void arrive(job *j, int64_t key, int64_t one, double time) {
    j->link[one] = j->members[key];
    j->members[key] = one;
    if (time > j->last[key] || (time == j->last[key] && one < j->who[key])) {
        j->last[key] = time;
        j->who[key] = one;
    }
    if (--j->missing[key] <= 0) complete(j, key);
}

/* Returns the meeting of work that has started and whose end is not known yet, or -1. */
static int64_t unknown(const job *j, int64_t row) {
    return row >= 0 && isnan(j->end[row]) && !isnan(j->start[row]) ? j->group[row] : -1;
}

static void run_work(job *j, int64_t row) {
    int64_t call = j->call[row], bound = j->after[row];
    double ready = bound >= 0 ? j->end[bound] : NAN;
    if (isnan(ready)) { ready = -INFINITY; bound = -1; }
    for (int64_t k = j->follows_at[row]; k < j->follows_at[row + 1]; k++) {
        double end = j->end[j->follows[k]];
        if (end > ready) { ready = end; bound = j->follows[k]; }
    }
    double by_work = ready + j->lag[row];
    double by_call = call >= 0 ? j->begin[call] + j->latency[row] : -INFINITY;
    if (isnan(by_call)) by_call = -INFINITY;
    if (by_work == -INFINITY && by_call == -INFINITY) j->start[row] = j->begun[row];
    else {
        j->bound[row] = by_work >= by_call ? bound : -1;
        j->start[row] = (by_work >= by_call ? by_work : by_call) + j->rest[row];
    }
    if (j->group[row] >= 0) arrive(j, j->group[row], j->calls + row, j->start[row]);
    else j->end[row] = j->start[row] + j->took[row];
}

static void start_call(job *j, int64_t call) {
    double before = j->is_free[j->thread[call]];
    j->begin[call] = isnan(before) ? j->first[call] : before + j->before[call];
    if (j->meeting[call] < 0 && j->awaits_at[call] == j->awaits_at[call + 1])
        j->done[call] = j->is_free[j->thread[call]] = j->begin[call] + j->spent[call];
}

static void end_call(job *j, int64_t call) {
    double done = j->begin[call] + j->spent[call];
    if (j->waits[call])
        for (int64_t k = j->awaits_at[call]; k < j->awaits_at[call + 1]; k++) {
            double end = j->end[j->awaits[k]] + j->tail[call];
            if (end > done) { done = end; j->blocked[call] = j->awaits[k]; }
        }
    if (j->meeting[call] >= 0) done = j->last[j->meeting[call]] + j->tail[call];
    j->done[call] = j->is_free[j->thread[call]] = done;
}

/* Goes on with a rank; returns the meeting whose end it needs, or -1 at the end of its plan. */
static int64_t advance(job *j, int64_t rank) {
    for (; j->at[rank] < j->until[rank]; j->at[rank]++) {
        int64_t place = j->plan[j->at[rank]], key;
        if (place < j->calls) start_call(j, place);
        else if (place >= 2 * j->calls) {
            int64_t row = place - 2 * j->calls;
            if ((key = unknown(j, j->after[row])) >= 0) return key;
            for (int64_t k = j->follows_at[row]; k < j->follows_at[row + 1]; k++)
                if ((key = unknown(j, j->follows[k])) >= 0) return key;
            run_work(j, row);
        } else {
            int64_t call = place - j->calls;
            if (j->waits[call])
                for (int64_t k = j->awaits_at[call]; k < j->awaits_at[call + 1]; k++)
                    if ((key = unknown(j, j->awaits[k])) >= 0) return key;
            if ((key = j->meeting[call]) >= 0 && !j->met[rank]) {
                arrive(j, key, call, j->begin[call]);
                j->met[rank] = 1;
                if (j->missing[key] > 0) return key;
            }
            j->met[rank] = 0;
            end_call(j, call);
        }
    }
    return -1;
}

static void run(job *j) {
    for (;;) {
        while (j->taken < j->queued) {
            int64_t rank = j->ready[j->taken++ % j->ranks], key = advance(j, rank);
            if (key < 0) continue;
            j->needs[rank] = key;
            j->next[rank] = j->waiting[key];
            j->waiting[key] = rank;
        }
        int64_t least = -1; /* the recorded orders contradict: it ends without the rest */
        for (int64_t rank = 0; rank < j->ranks; rank++)
            if (j->needs[rank] >= 0 && (least < 0 || j->needs[rank] < least)) least = j->needs[rank];
        if (least < 0) return;
        complete(j, least);
    }
}

static int within(const int64_t *values, int64_t size, int64_t least, int64_t limit) {
    for (int64_t k = 0; k < size; k++)
        if (values[k] < least || values[k] >= limit) return 0;
    return 1;
}

static int ascending(const int64_t *values, int64_t size, int64_t limit) {
    for (int64_t k = 1; k < size; k++)
        if (values[k] < values[k - 1]) return 0;
    return size > 0 && values[0] >= 0 && values[size - 1] <= limit;
}

static int is_valid(const Py_buffer *v, job *j) {
    int64_t size[ARGUMENTS];
    for (int k = 0; k < ARGUMENTS; k++) {
        if (v[k].len % 8) return 0;
        size[k] = v[k].len / 8;
    }
    j->calls = size[THREAD]; j->rows = size[CALL];
    j->ranks = size[BOUNDS] - 1; j->meetings = size[SIZES];
    for (int k = 0; k < ARGUMENTS; k++) {
        int64_t expected = sizes[k] == 'c' ? j->calls : sizes[k] == 'C' ? j->calls + 1
                         : sizes[k] == 'r' ? j->rows : sizes[k] == 'R' ? j->rows + 1
                         : sizes[k] == 'n' ? j->calls + j->rows : size[k];
        if (size[k] != expected) return 0;
    }
    j->threads = j->calls + 1;
    return within(j->thread, j->calls, 0, j->threads)
        && within(j->meeting, j->calls, -1, j->meetings)
        && within(j->group, j->rows, -1, j->meetings)
        && within(j->call, j->rows, -1, j->calls) && within(j->after, j->rows, -1, j->rows)
        && within(j->follows, size[FOLLOWS], 0, j->rows)
        && within(j->awaits, size[AWAITS], 0, j->rows)
        && within(j->plan, size[PLAN], 0, 2 * j->calls + j->rows)
        && ascending(j->follows_at, j->rows + 1, size[FOLLOWS])
        && ascending(j->awaits_at, j->calls + 1, size[AWAITS])
        && ascending(v[BOUNDS].buf, j->ranks + 1, size[PLAN]);
}

static int64_t *numbers(int64_t count, int64_t value) {
    int64_t *made = malloc((size_t)(count + 1) * sizeof *made);
    for (int64_t k = 0; made && k < count; k++) made[k] = value;
    return made;
}

static double *times(int64_t count, double value) {
    double *made = malloc((size_t)(count + 1) * sizeof *made);
    for (int64_t k = 0; made && k < count; k++) made[k] = value;
    return made;
}

static int follow_all(job *j, const int64_t *bounds, const int64_t *members) {
    j->last = times(j->meetings, -INFINITY); j->is_free = times(j->threads, NAN);
    j->missing = numbers(j->meetings, 0); j->who = numbers(j->meetings, -1);
    j->members = numbers(j->meetings, -1); j->waiting = numbers(j->meetings, -1);
    j->link = numbers(j->calls + j->rows, -1);
    j->next = numbers(j->ranks, -1); j->needs = numbers(j->ranks, -1);
    j->at = numbers(j->ranks, 0); j->until = numbers(j->ranks, 0);
    j->met = numbers(j->ranks, 0); j->ready = numbers(j->ranks, 0);
    int done = j->last && j->is_free && j->missing && j->who && j->members && j->waiting && j->link
            && j->next && j->needs && j->at && j->until && j->met && j->ready;
    if (done) {
        memcpy(j->missing, members, (size_t)j->meetings * sizeof *members);
        for (int64_t rank = 0; rank < j->ranks; rank++) {
            j->at[rank] = bounds[rank]; j->until[rank] = bounds[rank + 1];
            j->ready[j->queued++] = rank;
        }
        run(j);
    }
    free(j->last); free(j->is_free); free(j->missing); free(j->who); free(j->members);
    free(j->waiting); free(j->link); free(j->next); free(j->needs); free(j->at); free(j->until);
    free(j->met); free(j->ready);
    return done;
}

PyDoc_STRVAR(follow_doc, "follow(*arrays)\n--\n\nSee follow.py.");

static PyObject *follow(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer v[ARGUMENTS];
    int filled = 0, done = 0;
    if (PyTuple_Size(args) != ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "follow: expected %d arrays", (int)ARGUMENTS);
    for (; filled < ARGUMENTS; filled++)
        if (PyObject_GetBuffer(PyTuple_GetItem(args, filled), &v[filled],
                               filled < START ? PyBUF_SIMPLE : PyBUF_WRITABLE) < 0)
            break;
    if (filled == ARGUMENTS) {
        job j = {
            .plan = v[PLAN].buf, .thread = v[THREAD].buf, .meeting = v[MEETING].buf,
            .call = v[CALL].buf, .after = v[AFTER].buf, .group = v[GROUP].buf,
            .follows_at = v[FOLLOWS_AT].buf, .follows = v[FOLLOWS].buf,
            .awaits_at = v[AWAITS_AT].buf, .awaits = v[AWAITS].buf, .waits = v[WAITS].buf,
            .begun = v[BEGUN].buf, .before = v[BEFORE].buf, .spent = v[SPENT].buf,
            .tail = v[TAIL].buf, .first = v[FIRST].buf, .latency = v[LATENCY].buf,
            .lag = v[LAG].buf, .rest = v[REST].buf, .took = v[TOOK].buf,
            .transfer = v[TRANSFER].buf, .start = v[START].buf, .end = v[END].buf,
            .begin = v[CALLS].buf, .done = v[DONE].buf, .bound = v[BOUND].buf,
            .blocked = v[BLOCKED].buf, .late = v[LATE].buf,
        };
        int valid;
        Py_BEGIN_ALLOW_THREADS
        valid = is_valid(v, &j);
        done = valid && follow_all(&j, v[BOUNDS].buf, v[SIZES].buf);
        Py_END_ALLOW_THREADS
        if (!valid) PyErr_SetString(PyExc_IndexError, "follow: an index is outside of its array");
        else if (!done) PyErr_NoMemory();
    }
    while (filled) PyBuffer_Release(&v[--filled]);
    if (!done) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"follow", follow, METH_VARARGS, follow_doc}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_follow",
    "Programs of all ranks to times.", 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__follow(void) { return PyModuleDef_Init(&module); }
