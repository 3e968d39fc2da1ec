// The rows of a chart, and the rectangle of each in the units of the axes.

const BAR = 0.8, HEADROOM = 1.08, MARGIN = 0.02, LABEL = 66; // shares, and pixels of a length label

/** Decodes numbers that were written as differences, or as they are. */
function column({ steps, values }) {
  if (values) return Float64Array.from(values);
  let sum = 0;
  return Float64Array.from(steps, (step) => (sum += step));
}

class Data {
  constructor(content) {
    Object.assign(this, content);
    const { rows } = content;
    this.count = rows.color.length;
    this.at = this.placesOf(column(rows.x));
    this.value = column(rows.y);
    this.end = rows.x2 ? this.placesOf(column(rows.x2)) : this.at;
    this.grown = rows.size && Float64Array.from(rows.size);
    this.labelOf = rows.label && ((row) => rows.labels[rows.label[row]]);
    this.symbolOf = rows.symbol && Uint8Array.from(rows.symbol);
    this.lines = this.lines.map(([label, x, y, x2, y2]) => [label, ...this.placesOf([x]), y, ...this.placesOf([x2]), y2]);
    this.color = Uint16Array.from(rows.color);
    this.panelOf = rows.panel ? Uint16Array.from(rows.panel) : new Uint16Array(this.count);
    this.ringed = column({ steps: content.ringed.map((row, at) => row - (content.ringed[at - 1] ?? 0)) });
    this.rings = new Set(this.ringed);
    this.hidden = new Set();
    this.inPanel = this.panels.map(() => []);
    for (let row = 0; row < this.count; row++) this.inPanel[this.panelOf[row]].push(row);
    for (const side of ['x0', 'x1', 'y0', 'y1']) this[side] = new Float64Array(this.count);
    this.lay();
    this.alone = this.mark === 'span' && this.#alone();
    this.spread(1000);
  }

  /** Values as places on the horizontal axis: logarithms on a logarithmic one. */
  placesOf(values) {
    return this.logX ? values.map(Math.log10) : values;
  }

  /** The value at a place on the horizontal axis. */
  valueAt(place) {
    return this.logX ? 10 ** place : place;
  }

  isVisible(row) {
    return !this.hidden.has(this.color[row]);
  }

  /** Shows or hides a category. */
  toggle(color) {
    if (!this.hidden.delete(color)) this.hidden.add(color);
    this.lay();
  }

  /** Gives every row its rectangle; points have no size. */
  lay() {
    if (this.mark === 'bar') this.#bars();
    else {
      const half = this.mark === 'span' ? BAR / 2 : 0;
      for (let row = 0; row < this.count; row++) {
        this.x0[row] = Math.min(this.at[row], this.end[row]);
        this.x1[row] = Math.max(this.at[row], this.end[row]);
        this.y0[row] = this.value[row] - half;
        this.y1[row] = this.value[row] + half;
      }
    }
    this.up = this.#up();
  }

  /** Bars from 0: stacked, or side by side where several colours share a position. */
  #bars() {
    const wide = this.width || BAR, shift = this.width ? 0 : -BAR / 2;
    const visible = this.colors.map((_, color) => color).filter((color) => !this.hidden.has(color));
    const abreast = !this.stacked && this.#meet() ? Math.max(visible.length, 1) : 1;
    const tops = new Map();
    this.floor = this.log ? this.#least() / 2 : 0;
    for (let row = 0; row < this.count; row++) {
      const lane = abreast > 1 ? Math.max(visible.indexOf(this.color[row]), 0) : 0;
      this.x0[row] = this.at[row] + shift + wide * lane / abreast;
      this.x1[row] = this.x0[row] + wide / abreast;
      const key = `${this.panelOf[row]} ${this.at[row]}`, base = this.stacked ? tops.get(key) ?? 0 : 0;
      this.y0[row] = this.stacked ? base : this.floor;
      this.y1[row] = base + this.value[row];
      if (this.stacked && this.isVisible(row)) tops.set(key, this.y1[row]);
    }
  }

  /** Whether bars of several colours share a position. */
  #meet() {
    const colors = new Map();
    for (let row = 0; row < this.count; row++) {
      const key = `${this.panelOf[row]} ${this.at[row]}`;
      if (!colors.has(key)) colors.set(key, this.color[row]);
      else if (colors.get(key) !== this.color[row]) return true;
    }
    return false;
  }

  #least() {
    return this.value.reduce((least, value) => (value > 0 && value < least ? value : least), Infinity);
  }

  /** Whether each name has one bar from 0: then its length is written next to it. */
  #alone() {
    const names = new Set();
    for (let row = 0; row < this.count; row++) names.add(`${this.panelOf[row]} ${this.value[row]}`);
    return names.size === this.count && this.x0.every((from) => from === 0);
  }

  /** Sets the range of the horizontal axis on this many pixels. */
  spread(pixels) {
    this.across = this.#across(this.alone ? LABEL / Math.max(pixels - LABEL, LABEL) : MARGIN);
  }

  #across(share) {
    if (this.x.names) return [-0.5, this.x.names.length - 0.5];
    let low = Infinity, high = -Infinity;
    for (let row = 0; row < this.count; row++) {
      low = Math.min(low, this.x0[row]);
      high = Math.max(high, this.x1[row]);
    }
    for (const [, x, , x2] of this.lines) [low, high] = [Math.min(low, x, x2), Math.max(high, x, x2)];
    if (high <= low) return [low - (Math.abs(low) || 1) / 2, low + (Math.abs(low) || 1) / 2];
    if (this.mark === 'bar') return [low, high];
    const room = (high - low) * share;
    return [this.mark === 'span' && low === 0 ? 0 : low - room, high + room];
  }

  /** The range of the vertical axis, shared by all panels: all visible marks. */
  #up() {
    if (this.y.names) return [-0.5, this.y.names.length - 0.5];
    let low = Infinity, high = -Infinity;
    for (let row = 0; row < this.count; row++) {
      if (!this.isVisible(row)) continue;
      const under = this.log ? this.y0[row] > 0 ? this.y0[row] : Infinity : Math.min(this.y0[row], this.y1[row]);
      low = Math.min(low, under);
      high = Math.max(high, this.y0[row], this.y1[row]);
    }
    for (const [, , y, , y2] of this.lines) [low, high] = [Math.min(low, y, y2), Math.max(high, y, y2)];
    if (this.log) {
      const room = (share) => (this.lines.length ? (high / low) ** share : 1); // for the labels of lines
      return high > 0 && low < Infinity ? [low * 0.8 / room(0.02), high * Math.max(1.3, room(0.07))] : [1, 10];
    }
    if (!(high >= low)) return [0, 1];
    if (low >= 0 && (this.mark === 'bar' || low < high / 2)) return [0, high * HEADROOM || 1];
    const room = (high - low || Math.abs(high) || 1) * (HEADROOM - 1);
    return [low - room, high + room];
  }

  /** The tooltip of a mark: names and values. */
  describe(row, span) {
    const { x, y } = this, facts = [], named = new Set(['']);
    const add = (name, text) => facts.push([name, text]);
    const addName = (name, text) => {
      if (text && !named.has(text)) add(name, text);
      named.add(text);
    };
    if (this.labelOf) addName('', this.labelOf(row));
    if (this.mark === 'span') {
      const from = this.x0[row], to = this.x1[row];
      addName(y.label, format(y, this.value[row]));
      add(from === 0 && x.label ? x.label : 'length', format(x, to - from));
      if (from !== 0) facts.push(['from', formatPlace(x, from, span)], ['to', formatPlace(x, to, span)]);
    } else {
      (y.names ? addName : add)(y.label || 'value', format(y, this.value[row]));
      (x.names ? addName : add)(x.label, this.logX ? format(x, this.valueAt(this.at[row])) : formatPlace(x, this.at[row], span));
      if (this.symbolOf) addName('', this.symbols[this.symbolOf[row]] ?? '');
    }
    if (this.group) addName(this.group, this.colors[this.color[row]][0]);
    if (this.panels.length > 1) addName('', this.panels[this.panelOf[row]]);
    if (this.rings.has(row)) addName('', this.ring);
    return facts;
  }
}
