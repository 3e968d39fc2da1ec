// The rows of the timeline: packed columns, and searches in them.

/** Inflates and decodes the columns of all tables, see pack.py. */
async function unpack({ columns, ends, data }) {
  const packed = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer()), tables = {};
  let at = 0;
  const column = (rows) => {
    const values = new Float64Array(rows);
    for (let row = 0; row < rows; row++) {
      let byte = bytes[at++], value = byte & 127, unit = 128;
      for (; byte > 127; unit *= 128) {
        byte = bytes[at++];
        value += (byte & 127) * unit;
      }
      values[row] = value % 2 ? -(value + 1) / 2 : value / 2;
    }
    return values;
  };
  for (const [table, names] of Object.entries(columns)) {
    const rows = ends[table].at(-1) ?? 0;
    tables[table] = new Rows(ends[table], Object.fromEntries(names.map((name) => [name, column(rows)])));
  }
  return tables;
}

/** Intervals of all lanes, sorted by lane and start. */
class Rows {
  constructor(ends, { gap, length, ...columns }) {
    Object.assign(this, columns, { ends, start: gap, end: length, longest: ends.map(() => 0) });
    let before = 0, lane = 0;
    for (let row = 0; row < gap.length; row++) {
      while (row >= ends[lane]) lane++;
      this.longest[lane] = Math.max(this.longest[lane], length[row]);
      gap[row] += before;
      before = length[row] += gap[row];
    }
  }

  /** The first and last row of a lane that may overlap an interval; some of them may end before it. */
  between(lane, from, to) {
    const first = lane ? this.ends[lane - 1] : 0, last = this.ends[lane];
    return [search(this.start, first, last, from - this.longest[lane]), search(this.start, first, last, to)];
  }

  /** The number of rows of a lane. */
  count(lane) {
    return this.ends[lane] - (lane ? this.ends[lane - 1] : 0);
  }

  /** The rows of a lane at a moment. */
  at(lane, moment) {
    const [first, last] = this.between(lane, moment, moment + 1e-6), rows = [];
    for (let row = first; row < last; row++) if (this.end[row] > moment && this.start[row] <= moment) rows.push(row);
    return rows;
  }
}

/** The first row of a sorted range whose value is at least this. */
function search(values, low, high, least) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** All that the viewer shows. */
class Timeline {
  constructor(content, tables) {
    Object.assign(this, content, tables);
    this.rank = this.lanes.map((_, lane) => lane);
    this.order = this.rank;
    this.sorted = this.rank.slice().sort((a, b) => this.lost(b) - this.lost(a) || a - b);
    const known = this.sorted.filter((lane) => this.lanes[lane][2] !== null);
    this.mostSteps = Math.max(0, ...this.rank.map((lane) => this.steps.count(lane)));
    this.labelled = new Map(known.length > 2
      ? [[known[known.length >> 1], 'median'], [known.at(-1), 'least'], [known[0], 'most']] : []);
  }

  lost(lane) {
    return this.lanes[lane][2] ?? -1;
  }

  /** The states that take at least a thousandth of the time, which is what the legend shows. */
  visibleKinds() {
    const { states } = this, sums = new Float64Array(this.stateKinds.length);
    for (let row = 0; row < states.kind.length; row++) sums[states.kind[row]] += states.end[row] - states.start[row];
    const whole = sums.reduce((sum, one) => sum + one, 0);
    return new Set([...sums.keys()].filter((kind) => sums[kind] && sums[kind] >= whole / 1000));
  }

  /** Sorts the rows by rank, host or lost time. */
  sort(by) {
    const host = (lane) => this.lanes[lane][1];
    const orders = {
      rank: this.rank, lost: this.sorted,
      host: this.rank.slice().sort((a, b) => (host(a) < host(b) ? -1 : host(a) > host(b) ? 1 : a - b)),
    };
    this.order = orders[by];
  }

  /** Adds the time of each state of a lane in each of `count` columns of an interval, in columns. */
  cover(lane, [from, to], count) {
    const { states } = this, kinds = this.stateKinds.length, cover = new Float32Array(count * kinds);
    const scale = count / (to - from), [first, last] = states.between(lane, from, to);
    for (let row = first; row < last; row++) {
      const x0 = Math.max((states.start[row] - from) * scale, 0), x1 = Math.min((states.end[row] - from) * scale, count);
      if (x1 <= x0) continue;
      const kind = states.kind[row], c0 = x0 | 0, c1 = Math.min(x1 | 0, count - 1);
      if (c0 === c1) cover[c0 * kinds + kind] += x1 - x0;
      else {
        cover[c0 * kinds + kind] += c0 + 1 - x0;
        for (let column = c0 + 1; column < c1; column++) cover[column * kinds + kind] += 1;
        cover[c1 * kinds + kind] += x1 - c1;
      }
    }
    return cover;
  }

  /** What a lane does at a moment: names and values. */
  describe(lane, moment) {
    const [on, host] = this.lanes[lane], pairs = [['', host ? `${on} (${host})` : on]];
    const [state] = this.states.at(lane, moment), [step] = this.steps.at(lane, moment);
    if (state !== undefined) pairs.push(...this.#state(state));
    for (const event of this.events.at(lane, moment).slice(-4)) pairs.push(...this.#event(event));
    const [gap] = this.gaps.at(lane, moment), idle = state === undefined || this.stateKinds[this.states.kind[state]][0];
    if (gap !== undefined && IDLE.has(idle)) pairs.push(...this.#gap(gap));
    if (step !== undefined) pairs.push(['step', `${this.stepNames[this.steps.kind[step]]}, ${span(this.steps, step)}`]);
    return [...pairs, ['time', time(moment)]];
  }

  /** The row of a lane's step, by its place. */
  stepOf(lane, place) {
    return place >= 0 && place < this.steps.count(lane) ? this.steps.ends[lane] - this.steps.count(lane) + place : undefined;
  }

  /** A measure of each step of each lane in ns, and the largest. */
  measured(name) {
    this.measures ??= new Map();
    if (!this.measures.has(name)) {
      const [, chosen] = MEASURES.find(([one]) => one === name), rows = this.rank.map((lane) => this.#measure(lane, chosen));
      this.measures.set(name, { rows, most: Math.max(1, ...rows.map((row) => Math.max(0, ...row))) });
    }
    return this.measures.get(name);
  }

  #measure(lane, chosen) {
    const { steps } = this, kinds = this.stateKinds.length;
    return Array.from({ length: steps.count(lane) }, (_, place) => {
      const row = this.stepOf(lane, place), from = steps.start[row], to = steps.end[row];
      if (!chosen) return to - from;
      const cover = this.cover(lane, [from, to], 1);
      let share = 0;
      for (let kind = 0; kind < kinds; kind++) if (chosen.has(this.stateKinds[kind][0])) share += cover[kind];
      return share * (to - from);
    });
  }

  /** All measures of a step: names and values. */
  describeStep(lane, place) {
    const step = this.stepOf(lane, place), [on, host] = this.lanes[lane];
    if (step === undefined) return [['', on], ['step', 'not recorded']];
    const numbers = MEASURES.map(([name]) => [name, time(this.measured(name).rows[lane][place])]);
    return [['', host ? `${on} (${host})` : on], ['step', this.stepNames[this.steps.kind[step]]], ...numbers];
  }

  #state(row) {
    const { states } = this, why = this.notes[states.note[row]];
    const label = this.stateKinds[states.kind[row]][1];
    return [['state', `${why && why !== label ? `${label}: ${why}` : label}, ${span(states, row)}`]];
  }

  #event(row) {
    const { events } = this, [name, stream, , size, operator, collective] = this.kinds[events.kind[row]];
    const count = events.count[row], merged = count > 1 ? `${count} short events, e.g. ` : '';
    const what = [merged + (name ?? 'no name'), span(events, row)];
    if (size !== null) what.push(format(BYTES, size));
    const pairs = [[collective ?? 'kernel', what.join(', ')]];
    if (stream !== null) pairs[0][1] += `, stream ${stream}`;
    return operator === null ? pairs : [...pairs, ['operator', operator]];
  }

  #gap(row) {
    const [before, after, host] = this.gapTexts[this.gaps.kind[row]];
    const pairs = [['gap', span(this.gaps, row)], ['host', host], ['after', before], ['until', after]];
    return pairs.filter(([, text]) => text !== null);
  }
}

const IDLE = new Set(['dataloading', 'launch', 'synchronisation', 'host', 'idle']);
/** Measures of a step, and the states that they sum; none: its length. */
const MEASURES = [
  ['step time', null], ['waiting for other ranks', new Set(['waiting'])], ['idle', IDLE],
  ['exposed communication', new Set(['transfer', 'waiting'])],
];
const TIME = { kind: 'ns', whole: true }, BYTES = { kind: 'bytes', whole: true };
const time = (ns) => format(TIME, ns, 6);
const span = (rows, row) => time(rows.end[row] - rows.start[row]);
