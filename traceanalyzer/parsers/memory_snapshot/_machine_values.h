/* Part of _machine.c: its containers and its memo. Lists, stacks, rows, dicts, tuples. */

/* The memo entry of a container about to be filled, which must not have been fetched. */
static int patch(machine *m, word container, unsigned expected, word value) {
    word *kept = WORDS(m->memo) + OF(container);
    if (TAG(*kept) != expected) return fail(m, REFILLED, 0);
    *kept = value;
    return 1;
}

static int all_frames(const word *items, size_t count) {
    word odd = 0;
    for (size_t i = 0; i < count; i++) odd |= (items[i] ^ ROW) & 0xFF0000000000000Full;
    return !odd;
}

static int make_stack(machine *m, word *container, const word *items, size_t count) {
    uint64_t number;
    word was = *container;
    if (count > MOST_ITEMS) return fail(m, FRAMES, 0);
    if (!intern(m, &m->sequences, items, count * 8, &number)) return 0;
    if (KIND(was) == NEW_LIST || KIND(was) == OPEN_STACK) *container = OPENED(OPEN_STACK, number);
    else {
        if (!patch(m, was, KIND(was) == MEMO_LIST ? OPEN : KEPT, WORD(KEPT, number))) return 0;
        *container = OPENED(MEMO_STACK, OF(was));
    }
    return 1;
}

/* Adds items to a stack: pickle writes a thousand at a time. */
static int more_stack(machine *m, word *container, const word *items, size_t count) {
    size_t size;
    uint64_t number;
    word was = *container;
    const word *old = (const word *)entry(&m->sequences, settled(m, was) >> 4, &size);
    size_t before = size / 8;
    m->again += before;
    if (m->again > 4 * m->behind + (16u << 20)) return fail(m, AGAIN, 0);
    if (all_frames(items, count)) {
        if (!fit(m, &m->scratch, before + count, 8)) return 0;
        memcpy(m->scratch.at, old, size);
        memcpy(WORDS(m->scratch) + before, items, count * 8);
        return make_stack(m, container, WORDS(m->scratch), before + count);
    }
    if (KIND(was) == MEMO_STACK && !patch(m, was, KEPT, TAKEN)) return 0;
    if (!begin(m, &m->lists, &number) || !extend(m, &m->lists, number, old, before)) return 0;
    *container = OPENED(OPEN_LIST, number);
    return extend(m, &m->lists, number, items, count);
}

/* Appends everything above a place on the stack to the list there. */
static int append(machine *m, size_t place) {
    word *container = WORDS(m->stack) + place, *items = container + 1, was = *container;
    size_t count = m->stack.used - place - 1;
    uint64_t number;
    if (TAG(was) != OPEN || KIND(was) == NEW_DICT || KIND(was) == MEMO_DICT || KIND(was) == OPEN_DICT)
        return fail(m, NO_LIST, 0);
    m->stack.used = place + 1;
    if (!count) return 1;
    if (KIND(was) == OPEN_LIST) return extend(m, &m->lists, OF(was), items, count);
    if (KIND(was) == OPEN_STACK || KIND(was) == MEMO_STACK)
        return more_stack(m, container, items, count);
    if (all_frames(items, count)) return make_stack(m, container, items, count);
    if (KIND(was) == MEMO_LIST && !patch(m, was, OPEN, TAKEN)) return 0;
    if (!begin(m, &m->lists, &number)) return 0;
    *container = OPENED(OPEN_LIST, number);
    return extend(m, &m->lists, number, items, count);
}

/* Returns the first table identified by one of these keys, or MOST_TABLES. */
static unsigned table_of(const machine *m, const word *pairs, size_t count) {
    unsigned bits = 0, number = 0;
    for (size_t i = 0; i < count; i += 2)
        if (TAG(pairs[i]) == STR && pairs[i] >> 4 < m->keys) bits |= m->triggers[pairs[i] >> 4];
    if (!bits) return MOST_TABLES;
    while (!(bits >> number & 1)) number++;
    return number;
}

static int column_of(const machine *m, unsigned number, word key) {
    if (TAG(key) != STR || key >> 4 >= m->keys) return -1;
    return m->fields[number * m->keys + (key >> 4)];
}

static int frame_row(machine *m, const word *pairs, size_t count, uint64_t *row) {
    word values[MOST_FIELDS] = {0};
    table *t = &m->tables[0];
    for (size_t i = 0; i < count; i += 2) {
        int column = column_of(m, 0, pairs[i]);
        if (column < 0) continue;
        values[column] = settled(m, pairs[i + 1]);
        t->seen |= 1ull << column;
    }
    return intern(m, &m->frames, values, t->fields * 8, row);
}

static int grow_table(machine *m, table *t) {
    size_t room = next_room(t->room, t->rows + 1);
    for (size_t i = 0; i < t->fields; i++) {
        if (!t->columns[i]) continue;
        if (!charge(m, (uint64_t)(room - t->room) * 8)) return 0;
        word *column = realloc(t->columns[i], room * 8);
        if (!column) return fail(m, NO_MEMORY, 0);
        t->columns[i] = column;
    }
    t->room = room;
    return 1;
}

static int table_row(machine *m, unsigned number, const word *pairs, size_t count, uint64_t *row) {
    table *t = &m->tables[number];
    if (t->rows == t->room && !grow_table(m, t)) return 0;
    *row = t->rows;
    for (size_t i = 0; i < t->fields; i++)
        if (t->columns[i]) t->columns[i][*row] = NONE;
    for (size_t i = 0; i < count; i += 2) {
        int column = column_of(m, number, pairs[i]);
        if (column < 0) continue;
        if (!t->columns[column]) { /* previous rows lack the field: word 0 */
            if (!charge(m, (uint64_t)t->room * 8)) return 0;
            t->columns[column] = calloc(t->room, 8);
            if (!t->columns[column]) return fail(m, NO_MEMORY, 0);
        }
        t->columns[column][*row] = settled(m, pairs[i + 1]);
    }
    t->rows++;
    return 1;
}

/* Adds the pairs above a place on the stack to the dict there, which may become a row. */
static int set(machine *m, size_t place) {
    word *container = WORDS(m->stack) + place, *pairs = container + 1, was = *container;
    size_t count = m->stack.used - place - 1;
    uint64_t number;
    if (TAG(was) != OPEN || (KIND(was) != NEW_DICT && KIND(was) != MEMO_DICT && KIND(was) != OPEN_DICT))
        return fail(m, NO_DICT, 0);
    if (count & 1) return fail(m, ODD, 0);
    m->stack.used = place + 1;
    if (!count) return 1;
    if (KIND(was) == OPEN_DICT) return extend(m, &m->dicts, OF(was), pairs, count);
    unsigned of = table_of(m, pairs, count);
    if (of < MOST_TABLES) {
        if (!(of ? table_row(m, of, pairs, count, &number) : frame_row(m, pairs, count, &number)))
            return 0;
        *container = WORD(ROW, (word)of << 52 | number);
        return KIND(was) != MEMO_DICT || patch(m, was, OPEN, of ? TAKEN : *container);
    }
    if (KIND(was) == MEMO_DICT && !patch(m, was, OPEN, TAKEN)) return 0;
    if (!begin(m, &m->dicts, &number)) return 0;
    *container = OPENED(OPEN_DICT, number);
    return extend(m, &m->dicts, number, pairs, count);
}

static int tuple(machine *m, size_t count) {
    word *items = WORDS(m->stack) + m->stack.used - count;
    uint64_t number;
    if (count > MOST_ITEMS) return fail(m, LONG_TUPLE, count);
    for (size_t i = 0; i < count; i++) {
        items[i] = settled(m, items[i]);
        if (TAG(items[i]) > EMPTY) return fail(m, NESTED_TUPLE, 0); /* shared nested tuples would multiply */
    }
    if (!intern(m, &m->sequences, items, count * 8, &number)) return 0;
    *items = WORD(TUPLE, number);
    m->stack.used -= count - 1;
    return 1;
}

/* ---- the memo ---- */

static int put(machine *m, uint64_t index) {
    word *top = WORDS(m->stack) + m->stack.used - 1, value = *top;
    if (index > m->stored + AHEAD || index > m->at) return fail(m, BEYOND, index);
    if (index < m->memo.used && WORDS(m->memo)[index] != UNSET) return fail(m, STORED_TWICE, index);
    if (!fit(m, &m->memo, index + 1, 8)) return 0;
    while (m->memo.used <= index) WORDS(m->memo)[m->memo.used++] = UNSET;
    if (TAG(value) == ROW && !IS_FRAME(value)) value = TAKEN;
    else if (TAG(value) == OPEN) {
        switch (KIND(value)) {
        case NEW_LIST: *top = OPENED(MEMO_LIST, index); value = OPEN; break;
        case NEW_DICT: *top = OPENED(MEMO_DICT, index); value = OPEN; break;
        case OPEN_STACK: *top = OPENED(MEMO_STACK, index); value = WORD(KEPT, OF(value)); break;
        case OPEN_LIST: case OPEN_DICT: value = TAKEN; break;
        default: return fail(m, KEPT_TWICE, 0);
        }
    }
    WORDS(m->memo)[index] = value;
    m->stored++;
    return 1;
}

/* Checks a memo entry that is fetched for the first time, or is invalid. */
static int fetch(machine *m, uint64_t index, word *value) {
    word *kept = WORDS(m->memo) + index;
    if (index >= m->memo.used || *kept == UNSET) return fail(m, NEVER_STORED, index);
    switch (TAG(*kept)) {
    case BARRED: return fail(m, USED_TWICE, 0);
    case OPEN: *kept = EMPTY; break;
    case KEPT: *kept = WORD(STACK, *kept >> 4); break;
    }
    *value = *kept;
    return 1;
}

/* ---- truncated files ---- */

static size_t floor_of(const machine *m) { return m->open_marks ? m->marks[m->open_marks - 1] : 0; }

static int list_like(word w) {
    return TAG(w) == OPEN && KIND(w) != NEW_DICT && KIND(w) != MEMO_DICT && KIND(w) != OPEN_DICT;
}

/* Appends items that wait for an APPEND above the last mark to the lists below them. */
static int fold_items(machine *m, size_t floor, int in_list) {
    while (m->stack.used - floor >= 2) {
        word *top = WORDS(m->stack) + m->stack.used - 1;
        if (!list_like(top[-1])) break;
        if (TAG(*top) != ROW && !(list_like(*top) && !in_list)) break;
        if (!append(m, m->stack.used - 2)) return 0;
    }
    return 1;
}

/* Puts the items above the last mark into the container below it; an incomplete row is lost. */
static int fold_mark(machine *m, size_t floor, int in_list) {
    word *container = WORDS(m->stack) + floor - 1; /* exists: see salvage() */
    if (in_list) return append(m, floor - 1);
    if (TAG(*container) != OPEN) { m->stack.used = floor; return 1; }
    m->stack.used -= (m->stack.used - floor) & 1;
    if (KIND(*container) != OPEN_DICT
        && table_of(m, container + 1, m->stack.used - floor) < MOST_TABLES) {
        m->stack.used = floor - 1;
        return 1;
    }
    return set(m, floor - 1);
}

static int salvage(machine *m) {
    m->at = m->behind = m->consumed;
    for (;;) {
        size_t floor = floor_of(m), below = m->open_marks > 1 ? m->marks[m->open_marks - 2] : 0;
        int in_container = m->open_marks && floor > below; /* or another value */
        int in_list = in_container && list_like(WORDS(m->stack)[floor - 1]);
        if (!fold_items(m, floor, in_list)) return 0;
        if (!m->open_marks) break;
        m->open_marks--;
        if (!in_container) m->stack.used = floor;
        else if (!fold_mark(m, floor, in_list)) return 0;
    }
    m->root = m->stack.used ? settled(m, WORDS(m->stack)[0]) : NONE;
    return 1;
}
