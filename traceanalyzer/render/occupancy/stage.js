// The picture: the stack painted by columns on a canvas, axes and lines as SVG.

const LEFT = 74, RIGHT = 14, ROW = 17, AXIS = 24, STRIPE = 20, TICK_WIDTH = 110, LETTER = 6.6;
const BOLD = 1.1; // width of bold text, of plain text
const TALL = 3, WIDE = 4; // smallest height and width of boxes with edges, in pixels
const FADED = [0.82, 0.72], EDGE = [0.5, 0.32]; // share of the background colour, light and dark

class Stage {
  constructor(memory) {
    this.memory = memory;
    this.canvas = html('canvas', { 'aria-hidden': 'true' });
    this.below = svg('svg', { 'aria-hidden': 'true', class: 'axes' });
    this.above = svg('svg', { 'aria-hidden': 'true', class: 'lines' });
    this.ring = svg('path', { class: 'ring' });
    this.brush = svg('rect', { class: 'brush', visibility: 'hidden' });
    this.element = html('div', { class: 'plot' }, this.below, this.canvas, this.above);
    this.faded = null;
    this.fitted = false;
  }

  /** Adapts to a width and positions every part. */
  fit(width) {
    const marks = Math.min(this.memory.data.marks.length, 3);
    this.head = 8 + marks * ROW;
    this.stripes = this.memory.data.spans.length ? STRIPE + 4 : 0;
    this.width = Math.max(Math.floor(width) - LEFT - RIGHT, 50);
    this.height = width < 800 ? 340 : 420;
    const whole = [this.width + LEFT + RIGHT, this.head + this.height + AXIS + this.stripes];
    for (const layer of [this.below, this.above]) layer.setAttribute('viewBox', `0 0 ${whole.join(' ')}`);
    this.element.style.aspectRatio = whole.join(' / ');
    const share = (part, of) => `${100 * part / of}%`;
    Object.assign(this.canvas.style, {
      left: share(LEFT, whole[0]), top: share(this.head, whole[1]),
      width: share(this.width, whole[0]), height: share(this.height, whole[1]),
    });
  }

  /** Draws an interval of the axis. */
  draw(view, timed, dark) {
    Object.assign(this, { view, timed });
    this.levels = this.memory.columns(view, this.width, timed);
    this.#scale();
    this.#paint(dark);
    this.#axes();
    this.#lines();
  }

  // --- places --------------------------------------------------------------------------------

  /** The range of the vertical axis: from 0 to the highest, or of the visible changes. */
  #scale() {
    const { live, top } = this.memory;
    this.floor = 0;
    this.ceiling = top * 1.04 || 1;
    if (this.fitted) {
      let low = Infinity, high = 0;
      for (const level of this.levels) {
        if (level < 0) continue;
        low = Math.min(low, live[level]);
        high = Math.max(high, live[level]);
      }
      const margin = (high - low) * 0.08;
      if (margin > 0) [this.floor, this.ceiling] = [Math.max(low - margin, 0), high + margin];
    }
    this.scale = this.height / (this.ceiling - this.floor);
  }

  x(value) {
    return LEFT + (value - this.view[0]) / (this.view[1] - this.view[0]) * this.width;
  }

  y(size) {
    const y = this.head + this.height - (size - this.floor) * this.scale;
    return clamp(y, this.head, this.head + this.height);
  }

  /** The position of a pointer: value on the axis, level, height in bytes. */
  locate(event) {
    const box = this.canvas.getBoundingClientRect();
    const across = (event.clientX - box.left) / box.width, up = (box.bottom - event.clientY) / box.height;
    const column = clamp(Math.floor(across * this.width), 0, this.width - 1);
    const inside = across >= 0 && across < 1 && up >= 0 && up < 1;
    return {
      value: this.view[0] + across * (this.view[1] - this.view[0]),
      level: this.levels[column], height: this.floor + up * this.height / this.scale, inside,
    };
  }

  // --- the stack -----------------------------------------------------------------------------

  /** Paints runs of columns with the same level. */
  #paint(dark) {
    const ratio = Math.min(devicePixelRatio || 1, 2), { memory } = this;
    const width = Math.round(this.width * ratio), height = Math.round(this.height * ratio);
    const levels = ratio === 1 ? this.levels : memory.columns(this.view, width, this.timed);
    this.canvas.width = width;
    this.canvas.height = height;
    const context = this.canvas.getContext('2d', { willReadFrequently: true }), image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer), inks = this.#inks(dark);
    let column = new Uint32Array(height), owners = new Int32Array(height).fill(-2), before = owners.slice();
    let live = null, since = -1;
    for (let from = 0, to; from < width; from = to) {
      const level = levels[from];
      for (to = from + 1; to < width && levels[to] === level;) to++;
      if (level < 0) continue;
      live = memory.liveAt(level, live, since);
      since = level;
      [owners, before] = [before, owners];
      this.#column(level, live, inks, column, owners, this.scale * ratio);
      for (let y = 0; y < height; y++) {
        if (!column[y]) continue;
        if (to - from === 1) pixels[y * width + from] = column[y]; // most runs of a dense picture
        else pixels.fill(column[y], y * width + from, y * width + to);
        if (to - from >= WIDE && before[y] !== owners[y] && owners[y] > -2 && !this.#fades(owners[y])) {
          pixels[y * width + from] = inks.edge[this.#ink(owners[y])];
        }
      }
    }
    context.putImageData(image, 0, 0);
  }

  /** One column of pixels from the bottom, and the box of each, -2 where too flat for an edge. */
  #column(level, live, inks, column, owners, scale) {
    const height = column.length;
    let base = -this.floor, y = 0;
    const put = (owner, size) => {
      base += size;
      const end = clamp(Math.round(base * scale), 0, height), ink = this.#ink(owner);
      const faded = this.#fades(owner), tall = end - y >= TALL;
      if (end > y) {
        column.fill((faded ? inks.faded : inks.plain)[ink], height - end, height - y);
        owners.fill(tall ? owner : -2, height - end, height - y);
        if (tall) column[height - end] = (faded ? inks.faded : inks.edge)[ink];
      }
      y = end;
    };
    for (const box of live) put(box, this.memory.size[box]);
    put(-1, this.memory.rest[level]);
    column.fill(0, 0, height - y);
    owners.fill(-2, 0, height - y);
  }

  /** Whether a search is active that this box does not match. */
  #fades(owner) {
    return Boolean(this.faded) && !this.faded[owner];
  }

  #ink(owner) {
    return owner < 0 ? this.memory.data.grey : this.memory.fill[owner];
  }

  #inks(dark) {
    const fills = this.memory.data.fills[dark ? 1 : 0], paper = dark ? '#0d1117' : '#ffffff';
    return {
      plain: fills.map((color) => pixel(color)),
      faded: fills.map((color) => pixel(color, paper, FADED[dark ? 1 : 0])),
      edge: fills.map((color) => pixel(color, paper, EDGE[dark ? 1 : 0])),
    };
  }

  // --- axes ----------------------------------------------------------------------------------

  #axes() {
    const foot = this.head + this.height, right = LEFT + this.width, parts = [];
    const sizes = byteTicks(this.floor, this.ceiling, 6), apart = sizes[1] - sizes[0];
    for (const size of sizes) {
      const y = Math.round(this.y(size)) + 0.5;
      parts.push(svg('path', { class: 'grid', d: `M${LEFT} ${y}H${right}` }));
      parts.push(svg('text', { x: LEFT - 8, y: y + 4, 'text-anchor': 'end' }, byteTick(size, apart)));
    }
    const most = Math.max(Math.floor(this.width / TICK_WIDTH), 2), ticks = roundTicks(this.view, most);
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : this.view[1] - this.view[0];
    for (const value of ticks) {
      const x = this.x(value), text = place(value, step, this.timed);
      const anchor = x + text.length * 3.5 > right + RIGHT ? 'end' : 'middle';
      parts.push(svg('path', { class: 'tick', d: `M${x.toFixed(1)} ${foot}v5` }));
      parts.push(svg('text', { x: anchor === 'end' ? right + RIGHT : x, y: foot + 17, 'text-anchor': anchor }, text));
    }
    parts.push(svg('text', { x: LEFT - 8, y: foot + 17, 'text-anchor': 'end', class: 'unit' }, this.timed ? 'time' : 'event'));
    this.below.replaceChildren(...parts, ...this.#spans(foot + AXIS));
  }

  /** Steps as stripes below the axis, in two tones, with names where they fit. */
  #spans(top) {
    const parts = [], at = this.timed ? [2, 3] : [0, 1];
    let named = -Infinity;
    this.memory.data.spans.forEach((span, number) => {
      const from = Math.max(this.x(span[at[0]]), LEFT), to = Math.min(this.x(span[at[1]]), LEFT + this.width);
      if (!(to - from > 0.2)) return;
      const width = (to - from).toFixed(1);
      const stripe = { x: from.toFixed(1), y: top, width, height: STRIPE, class: number % 2 ? 'span odd' : 'span' };
      parts.push(svg('rect', stripe));
      const room = Math.floor((to - from - 6) / LETTER), middle = (from + to) / 2;
      const whole = this.memory.text(span[4]), label = whole.length <= room ? whole : this.memory.text(span[5]);
      if (room < Math.min(label.length, 4) || from < named) return;
      const text = label.length <= room ? label : `${label.slice(0, room - 1)}\u2026`;
      parts.push(svg('text', { x: middle, y: top + 14, 'text-anchor': 'middle' }, text));
      named = to;
    });
    return parts;
  }

  // --- lines above the stack -----------------------------------------------------------------

  #lines() {
    this.above.replaceChildren(
      svg('path', { class: 'halo', d: this.#steps(this.memory.reserved) }),
      svg('path', { class: 'reserved', d: this.#steps(this.memory.reserved) }),
      ...this.#marks(), this.ring, this.brush,
    );
  }

  /** A curve as steps, at most one per column. */
  #steps(values) {
    let path = '', last = NaN;
    this.levels.forEach((level, column) => {
      const value = level < 0 || values[level] > this.ceiling ? NaN : values[level], x = LEFT + column;
      if (Object.is(value, last)) return;
      const y = this.y(value).toFixed(1);
      if (!Number.isNaN(value)) path += Number.isNaN(last) ? `M${x} ${y}` : `H${x}V${y}`;
      else path += `H${x}`;
      last = value;
    });
    return Number.isNaN(last) ? path : `${path}H${LEFT + this.width}`;
  }

  /** Lines at the peak and at failures, and labels in rows that do not overlap. */
  #marks() {
    const rows = [-Infinity, -Infinity, -Infinity], lines = [], labels = [], right = LEFT + this.width;
    const base = this.head + this.height;
    for (const [event, ns, kind, text] of this.memory.data.marks) {
      const x = this.x(this.timed ? ns : event);
      if (!(x >= LEFT - 1 && x <= right + 1)) continue;
      const label = cut(this.memory.text(text), this.width - 16), wide = measure(label) * BOLD + 8;
      const start = Math.max(Math.min(x, right - wide), LEFT), row = rows.findIndex((end) => end < start);
      const y = 13 + Math.max(row, 0) * ROW;
      const sort = kind === 'oom' ? 'oom' : 'peak', from = row < 0 ? this.head - 4 : y + 4;
      lines.push(svg('path', { class: `mark ${sort}`, d: `M${x.toFixed(1)} ${from}V${base}` }));
      if (row < 0) continue;
      rows[row] = start + wide;
      labels.push(svg('text', { x: start, y, class: `label ${sort}` }, label));
    }
    return [...lines, ...labels];
  }

  /** Highlights the interval selected by a drag. */
  select(one, other) {
    const from = Math.max(this.x(Math.min(one, other)), LEFT);
    const to = Math.min(this.x(Math.max(one, other)), LEFT + this.width);
    this.brush.setAttribute('visibility', one !== other && to > from ? 'visible' : 'hidden');
    fill(this.brush, { x: from, y: this.head, width: Math.max(to - from, 0), height: this.height }, []);
  }

  /** Outlines a box over the visible part of its life. */
  mark(box) {
    this.ring.setAttribute('d', box === null || box < 0 ? '' : this.#outline(box));
  }

  #outline(box) {
    const bottom = this.memory.bottoms(box), from = this.memory.first[box], tops = [], feet = [];
    this.levels.forEach((level, column) => {
      const base = bottom[level - from];
      if (base === undefined || level < from) return;
      const x = LEFT + column, low = this.y(base).toFixed(1), high = this.y(base + this.memory.size[box]).toFixed(1);
      if (feet.length && feet.at(-1)[1] === low) {
        feet.at(-1)[2] = tops.at(-1)[2] = x + 1;
      } else {
        feet.push([x, low, x + 1]);
        tops.push([x, high, x + 1]);
      }
    });
    const along = tops.map(([x, y, end]) => `${x} ${y}L${end} ${y}`).join('L');
    const back = feet.reverse().map(([x, y, end]) => `${end} ${y}L${x} ${y}`).join('L');
    return feet.length ? `M${along}L${back}Z` : '';
  }
}
