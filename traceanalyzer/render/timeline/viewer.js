// The interactive timeline: view, legend, order of rows, tooltip, findings.

const KEYS = 'Drag to zoom, shift + drag to move, ctrl + wheel; double click to reset, click for details. Keys: + \u2212 0 \u2190 \u2192, \u2191 \u2193 details of a row';
const AROUND = 0.6; // share of the interval of a finding that is shown on both sides

class Viewer extends Zoomable {
  constructor(root, timeline) {
    super();
    Object.assign(this, { root, timeline, range: timeline.extent, least: 20 });
    this.view = this.range;
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.#build();
    this.picture = new Picture(timeline, this.canvas);
    this.gestures = new Gestures(this, this.plot);
    root.classList.add('live');
    this.dark.addEventListener('change', () => this.show());
    addEventListener('beforeprint', () => this.show(false));
    addEventListener('afterprint', () => this.show());
    new ResizeObserver(() => this.later()).observe(this.plot);
    this.show();
  }

  #build() {
    const title = this.root.querySelector('figcaption').textContent, { timeline } = this;
    this.canvas = html('canvas', { 'aria-hidden': 'true' });
    this.brush = html('div', { class: 'brush' });
    this.plot = html('div', { class: 'plot', tabindex: '0', role: 'group', 'aria-label': `${title}. ${KEYS}` }, this.canvas, this.brush);
    this.whole = this.#button('Reset zoom', () => this.reset(), { class: 'whole' });
    this.tip = html('div', { class: 'tip', 'aria-hidden': 'true' });
    this.pinned = html('div', { class: 'pinned', 'aria-live': 'polite' });
    this.legend = html('div', { class: 'keys' });
    const hint = html('p', { class: 'hint soft', 'aria-hidden': 'true' }, KEYS);
    const stage = html('div', { class: 'stage' }, this.plot, this.whole);
    const controls = html('div', { class: 'controls soft' }, ...this.#orders(), ...this.#measures());
    this.root.querySelector('.drawn').replaceChildren(html('div', { class: 'bar' }, this.legend, controls), stage, hint, this.pinned, this.tip);
    for (const [, start, end, number] of this.longestMarks()) {
      for (const link of document.querySelectorAll(`[data-mark="${number}"]`)) {
        link.addEventListener('click', () => this.goTo(start, end));
      }
    }
    if (timeline.lanes.length < 2) this.root.classList.add('single');
  }

  #button(text, act, attributes = {}) {
    const button = html('button', { type: 'button', ...attributes }, text);
    button.addEventListener('click', act);
    return button;
  }

  /** Buttons for the order of the rows. */
  #orders() {
    const { timeline } = this, hosts = new Set(timeline.lanes.map(([, host]) => host)).size;
    if (timeline.lanes.length < 3) return [];
    const names = [['rank', 'rank'], ...(hosts > 1 ? [['host', 'host']] : []), ['lost', 'idle time']];
    const buttons = names.map(([by, text]) => this.#button(text, () => {
      timeline.sort(by);
      for (const one of buttons) one.setAttribute('aria-pressed', one.dataset.by === by);
      this.later();
    }, { 'data-by': by, 'aria-pressed': by === 'rank' }));
    return [html('span', {}, 'Sort by ', ...buttons)];
  }

  /** A choice between the states over time and a number per step, as a heat map. */
  #measures() {
    if (!this.timeline.mostSteps) return [];
    const options = [['', 'states over time'], ...MEASURES.map(([name, states]) => [name, states ? `${name} per step` : name])];
    const choice = html('select', { 'aria-label': 'Show' }, ...options.map(([value, text]) => html('option', { value }, text)));
    choice.addEventListener('change', () => this.measure(choice.value));
    this.choice = choice;
    return [html('label', {}, 'Show ', choice)];
  }

  /** Shows states over time, or a measure of each step. */
  measure(name) {
    this.choice.value = name;
    this.picture.measure = name || null;
    this.root.classList.toggle('by-step', Boolean(name));
    this.range = name ? [0, this.timeline.mostSteps] : this.timeline.extent;
    this.least = name ? 1 : 20;
    this.view = this.range;
    this.hover(null);
    this.later();
  }

  // --- drawing -------------------------------------------------------------------------------

  show(dark = this.dark.matches) {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const room = this.root.closest('.report') ? ABOVE_FINDINGS : ROOM;
    this.plan = layout(this.timeline.lanes.length, Math.max(this.plot.clientWidth, 160), room);
    this.picture.draw(this.view, this.plan, dark);
    this.whole.classList.toggle('visible', this.zoomed);
    if (this.wasDark !== dark) this.#legend(dark);
    this.wasDark = dark;
  }

  #legend(dark) {
    const used = this.timeline.visibleKinds();
    this.legend.replaceChildren(...this.timeline.stateKinds.flatMap(([, label, light, black], kind) => (used.has(kind)
      ? [html('span', { class: 'key' }, svg('svg', { viewBox: '0 0 12 12' }, svg('rect', { width: 12, height: 12, rx: 2, fill: dark ? black : light })), label)] : [])));
  }

  // --- findings ------------------------------------------------------------------------------

  /** The longest interval of each finding. */
  longestMarks() {
    const length = ([, start, end]) => end - start, ascending = this.timeline.marks.toSorted((a, b) => length(a) - length(b));
    return [...new Map(ascending.map((mark) => [mark[3], mark])).values()];
  }

  /** Shows a finding and some time on both sides of it. */
  goTo(start, end) {
    if (this.picture.measure) this.measure('');
    const margin = (end - start) * AROUND;
    this.look(start - margin, end + margin);
    this.root.scrollIntoView({ block: 'nearest' });
  }

  // --- the pointer ---------------------------------------------------------------------------

  left() {
    return this.plot.getBoundingClientRect().left + LEFT;
  }

  pixels() {
    return this.plan.inner;
  }

  /** The position of a pointer: moment, and lane or undefined. */
  locate(event) {
    const box = this.plot.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const { row, gap, inner, height } = this.plan, place = Math.floor((y - HEAD) / (row + gap));
    const value = this.picture.moment(x);
    const inside = x >= LEFT - 4 && x <= LEFT + inner + 4 && y >= 0 && y < height;
    return { value, inside, lane: y >= HEAD ? this.timeline.order[place] : undefined, y };
  }

  /** Highlights the interval selected by a drag. */
  select(one, other) {
    const [from, to] = [one, other].sort((a, b) => a - b).map((value) => clamp(this.picture.x(value), LEFT, LEFT + this.plan.inner));
    Object.assign(this.brush.style, { left: `${from}px`, width: `${to - from}px`, top: `${HEAD}px`, height: `${this.plan.height - HEAD - FOOT}px` });
    this.brush.classList.toggle('visible', one !== other);
  }

  hover(event) {
    const { value, inside, lane } = event ? this.locate(event) : {};
    const known = inside && lane !== undefined;
    this.tip.classList.toggle('visible', Boolean(known));
    if (!known) return;
    this.tip.replaceChildren(facts(this.#describe(lane, value)));
    placeTip(this.tip, event, this.pinned);
  }

  /** What a lane does at a moment, or in a step. */
  #describe(lane, value) {
    return this.picture.measure ? this.timeline.describeStep(lane, Math.floor(value)) : this.timeline.describe(lane, value);
  }

  /** Keeps the description of a moment below the picture; a click on a finding's number shows it. */
  click(event) {
    const { value, lane, y } = this.locate(event);
    if (y < HEAD / 2) {
      const near = this.picture.numbers.find(({ x }) => Math.abs(x - this.picture.x(value)) < 10);
      if (near) document.getElementById(`finding-${near.number}`)?.scrollIntoView({ block: 'center' });
      return;
    }
    if (lane === undefined) return;
    if (this.picture.measure) {
      const step = this.timeline.stepOf(lane, Math.floor(value)), { start, end } = this.timeline.steps;
      this.measure('');
      if (step !== undefined) this.goTo(start[step], end[step]);
      return;
    }
    this.#pin(lane, value);
  }

  /** Describes what the next row does in the middle of the view. */
  nextRow(by) {
    const { order } = this.timeline;
    this.place = clamp((this.place ?? -1) + by, 0, order.length - 1);
    this.#pin(order[this.place], (this.view[0] + this.view[1]) / 2);
  }

  #pin(lane, value) {
    const close = this.#button('Close', () => this.pinned.replaceChildren());
    this.pinned.replaceChildren(facts(this.#describe(lane, value)), close);
  }
}

/** Builds the viewer of a figure. */
async function start(root) {
  const { packed, ...content } = JSON.parse(root.querySelector('script').textContent);
  root.viewer = new Viewer(root, new Timeline(content, await unpack(packed)));
}

for (const root of document.querySelectorAll('figure.timeline')) {
  if (root.querySelector('script')) start(root);
}
