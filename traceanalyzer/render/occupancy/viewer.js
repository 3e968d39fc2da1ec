// The controls of a figure: tools, pointer, keys, and the details of an allocation.

const KEYS = 'Wheel or drag to zoom, shift and drag to move, double click to reset; click to pin an '
  + 'allocation. Keys: + \u2212 0 zoom, \u2190 \u2192 move, \u2191 \u2193 next allocation, f fit height, / search.';
const CLOSEST = 4; // smallest span of a view in events or nanoseconds
const MOVED = 4; // pixels that turn a click into a drag
const FRAMES = 12; // most frames of the stack of a block

class Viewer {
  constructor(root) {
    this.root = root;
    this.memory = new Memory(JSON.parse(root.querySelector('script').textContent));
    this.stage = new Stage(this.memory);
    this.segments = this.memory.data.segments.size.length ? new Segments(this.memory) : null;
    this.timed = this.memory.timed;
    this.view = this.#whole();
    this.pinned = this.hovered = this.found = null;
    this.fragmented = false;
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.#build();
    this.#listen();
    root.classList.add('live');
    root.querySelector('details')?.removeAttribute('open');
    this.fit();
  }

  // --- parts ---------------------------------------------------------------------------------

  #build() {
    const button = (label, title, act) => {
      const element = html('button', { type: 'button', title }, label);
      element.addEventListener('click', act);
      return element;
    };
    this.field = html('input', {
      type: 'search', placeholder: 'Search stacks', 'aria-label': 'Search the stacks of allocations',
      autocomplete: 'off', spellcheck: 'false',
    });
    this.matched = html('output', { class: 'matched', 'aria-live': 'polite' });
    this.least = html('input', {
      type: 'range', min: 0, max: Math.ceil(Math.log2(this.memory.largest + 1)), value: 0, step: 1,
      'aria-label': 'Minimum size of drawn allocations',
    });
    this.sized = html('output', { class: 'sized', 'aria-live': 'polite' });
    this.byTime = button('Time', 'Time on the axis', () => this.turn(true));
    this.byEvent = button('Events', 'Allocator events on the axis', () => this.turn(false));
    this.byHeight = button('Fit height', 'Fit the vertical axis to the visible part (f)', () => this.fitHeight());
    const tools = html('div', { class: 'tools', role: 'group', 'aria-label': 'Memory over time' },
      html('span', { class: 'find' }, this.field), this.matched,
      html('label', { class: 'least' }, 'Min size', this.least), this.sized,
      html('span', { class: 'pair' }, ...(this.memory.timed ? [this.byTime, this.byEvent] : [])),
      html('span', { class: 'pair' },
        button('\u2212', 'Zoom out (\u2212)', () => this.zoom(2)),
        button('+', 'Zoom in (+)', () => this.zoom(0.5))),
      this.byHeight, button('Reset', 'Reset zoom (0)', () => this.reset()));
    this.stage.element.setAttribute('tabindex', '0');
    this.stage.element.setAttribute('role', 'group');
    this.stage.element.setAttribute('aria-label', `Allocations over time, stacked. ${KEYS}`);
    this.details = html('div', { class: 'details', 'aria-live': 'polite', tabindex: '0', role: 'region', 'aria-label': 'Allocation' });
    this.tip = html('div', { class: 'tip', 'aria-hidden': 'true' });
    this.drawn = this.root.querySelector('.drawn');
    this.drawn.replaceChildren(this.#keys(), tools, this.stage.element,
      html('p', { class: 'soft hint' }, KEYS), this.details,
      ...(this.segments ? this.#map(button) : []), this.tip);
    this.showDetails(null);
    this.keepLarge();
  }

  /** Draws allocations of at least the size of the slider: 0 is all, n is 2^n bytes. */
  keepLarge() {
    const { memory } = this, power = Number(this.least.value), size = power ? 2 ** power : 0;
    memory.keep(size);
    if (this.pinned !== null && this.pinned >= 0 && memory.size[this.pinned] < size) this.pin(this.pinned);
    this.sized.textContent = size
      ? `${bytes(size)} or more: ${GROUPED.format(memory.kept)} of ${GROUPED.format(memory.count)}` : 'all sizes';
    this.least.setAttribute('aria-valuetext', this.sized.textContent);
  }

  #keys() {
    const key = (kind, text, color) => {
      const swatch = svg('svg', { width: 13, height: 12, 'aria-hidden': 'true', class: kind },
        kind === 'line' ? svg('path', { d: 'M0 6h13' }) : svg('rect', { width: 13, height: 12, 'data-fill': color }));
      return html('span', {}, swatch, text);
    };
    const { legend, grey } = this.memory.data, rest = this.memory.rest;
    const entries = legend.map(([name, color]) => key('fill', name, color));
    if (rest.some(Boolean)) entries.push(key('fill', `other allocations ${bytes(rest[this.memory.peak])}`, grey));
    if (this.memory.reserved.some((size) => size >= 0)) entries.push(key('line', 'reserved'));
    return html('p', { class: 'keys' }, html('span', { class: 'soft' }, 'At the peak:'), ...entries);
  }

  #map(button) {
    this.largest = button('Largest first', 'Segments by size', () => this.order(false));
    this.holes = button('Most free first', 'Segments by free bytes', () => this.order(true));
    return [
      html('h3', {}, 'Segments at the peak'),
      html('p', { class: 'soft' }, this.segments.summary()),
      html('div', { class: 'tools' }, html('span', { class: 'pair' }, this.largest, this.holes),
        html('span', { class: 'keys' }, ...[[0, 'live'], [this.memory.data.grey, 'free']].map(([color, text]) => html('span', {},
          svg('svg', { width: 13, height: 12, 'aria-hidden': 'true' }, svg('rect', { width: 13, height: 12, 'data-fill': color })), text)))),
      html('div', { class: 'segments' }, this.segments.canvas),
    ];
  }

  // --- drawing -------------------------------------------------------------------------------

  /** Adapts to the available width and draws everything. */
  fit() {
    this.width = this.drawn.getBoundingClientRect().width;
    this.stage.fit(this.width);
    this.show();
    this.showMap();
  }

  /** Draws the stack; at most once a frame. */
  later() {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      this.show();
    });
  }

  show(dark = this.dark.matches) {
    this.stage.draw(this.view, this.timed, dark);
    this.stage.mark(this.pinned ?? this.hovered);
    const fills = this.memory.data.fills[dark ? 1 : 0];
    for (const swatch of this.root.querySelectorAll('[data-fill]')) swatch.setAttribute('fill', fills[swatch.dataset.fill]);
    this.byHeight.setAttribute('aria-pressed', this.stage.fitted);
    this.byTime.setAttribute('aria-pressed', this.timed);
    this.byEvent.setAttribute('aria-pressed', !this.timed);
  }

  showMap(dark = this.dark.matches) {
    if (!this.segments) return;
    this.segments.draw(this.width, this.fragmented, dark, this.found && this.found.blocks);
    this.largest.setAttribute('aria-pressed', !this.fragmented);
    this.holes.setAttribute('aria-pressed', this.fragmented);
  }

  #whole() {
    return [0, this.memory.axis(this.timed)[1]];
  }

  /** Shows an interval of the axis, limited to its range. */
  look(from, to) {
    const end = this.#whole()[1], wide = clamp(to - from, Math.min(CLOSEST, end), end);
    const start = clamp((from + to - wide) / 2, 0, end - wide);
    this.view = [start, start + wide];
    this.later();
  }

  /** Zooms by a factor around a position, by default the middle. */
  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    this.look(around + (this.view[0] - around) * factor, around + (this.view[1] - around) * factor);
  }

  move(share) {
    const by = (this.view[1] - this.view[0]) * share, end = this.#whole()[1];
    const kept = clamp(by, -this.view[0], end - this.view[1]);
    this.look(this.view[0] + kept, this.view[1] + kept);
  }

  reset() {
    this.stage.fitted = false;
    this.look(...this.#whole());
  }

  /** Switches between time and events on the axis; the visible interval stays the same. */
  turn(timed) {
    if (timed === this.timed) return;
    const [from, end] = this.memory.axis(this.timed), [to, last] = this.memory.axis(timed);
    const places = this.view.map((value) => {
      const next = bisect(from, value), [low, high] = [from[next - 1] ?? 0, from[next] ?? end];
      const [left, right] = [to[next - 1] ?? 0, to[next] ?? last];
      return left + (right - left) * (high > low ? (value - low) / (high - low) : 1);
    });
    this.timed = timed;
    this.look(...places);
  }

  fitHeight() {
    this.stage.fitted = !this.stage.fitted;
    this.later();
  }

  order(fragmented) {
    this.fragmented = fragmented;
    this.showMap();
  }

  search() {
    const text = this.field.value.trim();
    this.found = text ? this.memory.find(text) : null;
    this.stage.faded = this.found && this.found.boxes;
    const { count, bytes: matching } = this.found || {}, peak = this.memory.live[this.memory.peak];
    this.matched.textContent = this.found
      ? `${GROUPED.format(count)} found: ${bytes(matching)} at the peak (${percent(matching, peak)})` : '';
    this.later();
    this.showMap();
  }

  // --- details -------------------------------------------------------------------------------

  describe(box) {
    if (box < 0) return { title: 'Other allocations', facts: [['now', 'the sum of all allocations without their own box']], frames: null };
    const { memory } = this, { boxes } = memory.data;
    return {
      title: bytes(memory.size[box]),
      facts: [
        ['category', memory.text(boxes.category[box])],
        ['lifetime', this.lifetime(box)],
        ['code', memory.text(boxes.label[box])],
      ],
      frames: memory.stack(boxes.stack[box]),
    };
  }

  lifetime(box) {
    const { memory } = this, start = memory.start[box], end = memory.end[box];
    const before = start === 0, stays = end >= memory.data.events;
    if (before && stays) return 'always';
    const at = (event, ns) => (memory.timed && !Number.isNaN(ns) ? time(ns) : `event ${GROUPED.format(event)}`);
    const from = at(start, memory.startTime[box]), to = at(end, memory.endTime[box]);
    if (before) return `from before, until ${to}`;
    if (stays) return `from ${from}, stays`;
    const lasting = memory.endTime[box] - memory.startTime[box];
    return `from ${from} to ${to}, ${Number.isNaN(lasting) ? events(end - start) : time(lasting)}`;
  }

  /** The largest box at the peak, -1 without one. */
  #largest() {
    const { size, peak } = this.memory;
    return this.memory.liveAt(peak).reduce((best, box) => (best < 0 || size[box] > size[best] ? box : best), -1);
  }

  /** Fills the panel of details, by default with the largest allocation. */
  showDetails(what) {
    if (!what) {
      const box = this.#largest();
      what = box < 0 ? { title: 'No individual allocations', facts: [], frames: null } : this.describe(box);
      if (box >= 0) what.title = `${what.title}, the largest at the peak`;
    }
    const rows = what.facts.filter(([, value]) => value)
      .map(([name, value]) => html('div', {}, html('dt', {}, name), html('dd', {}, value)));
    const frames = (what.frames ?? []).map((frame) => html('li', {}, frame));
    this.details.replaceChildren(
      html('div', { class: 'facts' }, html('h3', {}, what.title), html('dl', {}, ...rows)),
      frames.length ? html('ol', { 'aria-label': 'Stack, the innermost frame first' }, ...frames)
        : html('p', { class: 'soft' }, what.frames ? 'No stack was recorded.' : ''),
    );
    this.details.scrollTop = 0;
  }

  #hint(what, event) {
    this.tip.classList.toggle('visible', Boolean(what));
    if (!what) return;
    const rows = [html('b', {}, what.title), ...what.facts.filter(([, value]) => value).map(([, value]) => html('div', {}, value))];
    this.tip.replaceChildren(...rows);
    placeTip(this.tip, event, this.details);
  }

  hover(box, event) {
    if (box !== this.hovered) {
      this.hovered = box;
      if (this.pinned === null) this.showDetails(box === null ? null : this.describe(box));
      this.stage.mark(this.pinned ?? box);
    }
    this.#hint(box === null ? null : this.describe(box), event);
  }

  /** Pins a box until it is clicked again. */
  pin(box) {
    this.pinned = box === this.pinned ? null : box;
    this.root.classList.toggle('pinned', this.pinned !== null);
    this.showDetails(this.pinned === null ? null : this.describe(this.pinned));
    this.stage.mark(this.pinned);
  }

  /** Pins the next box above (1) or below (-1); first the largest at the peak. */
  step(by) {
    const { memory } = this, level = this.pinned >= 0 && this.pinned !== null
      ? clamp(memory.peak, memory.first[this.pinned], memory.last[this.pinned] - 1) : memory.peak;
    const live = memory.liveAt(level);
    const next = this.pinned === null ? this.#largest() : live[live.indexOf(this.pinned) + by];
    if (next >= 0 && next !== this.pinned) this.pin(next);
  }

  // --- pointer and keys ----------------------------------------------------------------------

  #listen() {
    const plot = this.stage.element;
    plot.addEventListener('pointerdown', (event) => this.#press(event));
    plot.addEventListener('pointermove', (event) => this.#move(event));
    plot.addEventListener('pointerup', (event) => this.#release(event));
    plot.addEventListener('pointercancel', () => this.#drop());
    plot.addEventListener('pointerleave', (event) => this.hover(null, event));
    plot.addEventListener('dblclick', () => this.reset());
    plot.addEventListener('wheel', (event) => this.#wheel(event), { passive: false });
    this.root.addEventListener('keydown', (event) => this.#key(event));
    this.field.addEventListener('input', () => this.search());
    this.least.addEventListener('input', () => {
      this.keepLarge();
      this.search();
    });
    this.dark.addEventListener('change', () => this.fit());
    addEventListener('beforeprint', () => {
      this.root.querySelector('details')?.setAttribute('open', '');
      this.#ink(false);
    });
    addEventListener('afterprint', () => this.#ink(this.dark.matches));
    if (this.segments) {
      const { canvas } = this.segments, at = (event) => this.segments.locate(event);
      canvas.addEventListener('pointermove', (event) => {
        const hit = at(event);
        this.#hint(hit && this.#short(this.segments.describe(hit)), event);
      });
      canvas.addEventListener('pointerleave', (event) => this.#hint(null, event));
    }
    new ResizeObserver(() => {
      if (Math.abs(this.drawn.getBoundingClientRect().width - this.width) >= 1) this.fit();
    }).observe(this.drawn);
  }

  #ink(dark) {
    this.show(dark);
    this.showMap(dark);
  }

  /** A description with frames as facts, as blocks have no panel. */
  #short({ title, facts, frames }) {
    const left = frames.length - FRAMES;
    const first = frames.slice(0, FRAMES).map((frame) => ['', frame]);
    return { title, facts: [...facts, ...first, ['', left > 0 ? `\u2026 ${left} more frames` : '']] };
  }

  #press(event) {
    if (event.button) return;
    const { value, inside } = this.stage.locate(event);
    if (!inside) return;
    this.drag = { x: event.clientX, value, shift: event.shiftKey, view: this.view, moved: false };
    this.stage.element.setPointerCapture?.(event.pointerId);
  }

  #move(event) {
    const { value, level, height, inside } = this.stage.locate(event), { drag } = this;
    if (!drag) {
      this.hover(inside ? this.memory.at(level, height) : null, event);
      return;
    }
    drag.moved ||= Math.abs(event.clientX - drag.x) > MOVED;
    if (!drag.moved) return;
    this.hover(null, event);
    if (drag.shift) {
      const share = (event.clientX - drag.x) / this.stage.canvas.getBoundingClientRect().width;
      this.view = drag.view;
      this.move(-share);
    } else this.stage.select(drag.value, value);
  }

  #release(event) {
    const { drag } = this, { value, level, height } = this.stage.locate(event);
    this.#drop();
    if (!drag) return;
    if (!drag.moved) this.pin(this.memory.at(level, height));
    else if (!drag.shift) this.look(Math.min(drag.value, value), Math.max(drag.value, value));
  }

  #drop() {
    this.drag = null;
    this.stage.select(0, 0);
  }

  /** Zooms around the pointer; at full view the wheel scrolls the page. */
  #wheel(event) {
    const { value, inside } = this.stage.locate(event), [from, to] = this.view;
    const whole = from <= 0 && to >= this.#whole()[1];
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!inside || (whole && (sideways || event.deltaY > 0))) return;
    event.preventDefault();
    if (sideways) this.move(event.deltaX / this.width);
    else this.zoom(Math.exp(Math.max(Math.min(event.deltaY, 200), -200) / 300), value);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === this.least) return;
    if (event.target === this.field) {
      if (event.key !== 'Escape') return;
      this.field.value = '';
      this.search();
      return;
    }
    const onPlot = event.target === this.stage.element;
    const acts = {
      '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2), 0: () => this.reset(),
      ...(onPlot ? {
        ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
        ArrowUp: () => this.step(1), ArrowDown: () => this.step(-1),
      } : {}),
      f: () => this.fitHeight(), '/': () => this.field.focus(), Escape: () => this.pinned !== null && this.pin(this.pinned),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  }
}

for (const root of document.querySelectorAll('.occupancy:has(> script)')) root.viewer = new Viewer(root);
