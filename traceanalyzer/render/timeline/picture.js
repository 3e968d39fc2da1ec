// The picture on a canvas: steps, rows of states, names of events, findings, time axis.

const LEFT = 116, RIGHT = 12, HEAD = 40, FOOT = 30, TALLEST = 26, LABEL = 12;
const ROOM = 560, ABOVE_FINDINGS = 300; // height of all rows: on a page of their own, and in a report
const NAMED = 24; // smallest width of an event with its name, in pixels
const LETTERS = 9; // least letters of a shortened name
const FEW = 400; // events of a row that are drawn one by one

/** Heights for a number of rows that have some room. */
function layout(rows, width, room) {
  const row = clamp(Math.floor(room / rows), 2, TALLEST), gap = row >= 10 ? 4 : row >= 5 ? 1 : 0;
  return { width, inner: Math.max(width - LEFT - RIGHT, 50), row, gap, height: HEAD + rows * (row + gap) + FOOT };
}

/** Draws the visible interval of a timeline. */
class Picture {
  constructor(timeline, canvas) {
    Object.assign(this, { timeline, canvas, context: canvas.getContext('2d') });
  }

  draw(view, plan, dark) {
    Object.assign(this, { view, plan, dark });
    const ratio = Math.min(devicePixelRatio || 1, 2), { canvas, context } = this, style = getComputedStyle(canvas);
    canvas.width = Math.round(plan.width * ratio);
    canvas.height = Math.round(plan.height * ratio);
    canvas.style.height = `${plan.height}px`;
    this.ink = style.getPropertyValue('--ink');
    this.soft = style.getPropertyValue('--soft');
    this.line = style.getPropertyValue('--line');
    if (!this.measure) this.#rows(ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    context.textBaseline = 'middle';
    this.#labels();
    if (this.measure) {
      this.#cells();
      return;
    }
    this.#names();
    this.#path();
    this.#steps();
    this.#marks();
    this.#axis();
  }

  x(moment) {
    return LEFT + (moment - this.view[0]) / (this.view[1] - this.view[0]) * this.plan.inner;
  }

  /** The moment at a position. */
  moment(x) {
    return this.view[0] + (x - LEFT) / this.plan.inner * (this.view[1] - this.view[0]);
  }

  /** The top of a row. */
  y(place) {
    return HEAD + place * (this.plan.row + this.plan.gap);
  }

  /** Paints the states of all rows, pixel by pixel: in each column the share of each state. */
  #rows(ratio) {
    const { plan, timeline, context } = this, kinds = timeline.stateKinds.length;
    const count = Math.round(plan.inner * ratio), height = Math.max(Math.round(plan.row * ratio), 1);
    const image = context.createImageData(count, height), pixels = new Uint32Array(image.data.buffer);
    const inks = timeline.stateKinds.map(([, , light, dark]) => pixel(this.dark ? dark : light));
    timeline.order.forEach((lane, place) => {
      const cover = timeline.cover(lane, this.view, count);
      pixels.fill(0);
      for (let column = 0; column < count; column++) {
        let y = height, sum = 0;
        for (let kind = 0; kind < kinds && y > 0; kind++) {
          const share = cover[column * kinds + kind];
          if (!share) continue;
          sum += share;
          const top = Math.max(Math.round(height * (1 - sum)), 0);
          for (; y > top; y--) pixels[(y - 1) * count + column] = inks[kind];
        }
      }
      context.putImageData(image, Math.round(LEFT * ratio), Math.round(this.y(place) * ratio));
    });
  }

  /** Paints a measure of each step: the larger, the darker. */
  #cells() {
    const { plan, timeline, context } = this, { rows, most } = timeline.measured(this.measure);
    const [from, to] = this.view, wide = plan.inner / (to - from), last = Math.min(Math.ceil(to), timeline.mostSteps);
    timeline.order.forEach((lane, place) => {
      for (let step = Math.max(Math.floor(from), 0); step < Math.min(last, rows[lane].length); step++) {
        const x = Math.max(this.x(step), LEFT), right = Math.min(this.x(step + 1), LEFT + plan.inner);
        context.fillStyle = heat(rows[lane][step] / most, this.dark);
        context.fillRect(x, this.y(place), Math.max(right - x - (wide > 6 ? 1 : 0), 1), plan.row);
      }
    });
    context.fillStyle = this.soft;
    context.textAlign = 'center';
    const every = Math.max(Math.ceil(40 / wide), 1), foot = plan.height - FOOT + 14;
    const lane = timeline.order.find((one) => timeline.steps.count(one) === timeline.mostSteps);
    for (let step = Math.ceil(from / every) * every; step < last; step += every) {
      const name = timeline.stepNames[timeline.steps.kind[timeline.stepOf(lane, step)]];
      context.fillText(cut(shortStep(name), wide * every - 4), this.x(step + 0.5), foot);
    }
    context.textAlign = 'right';
    context.fillText('step', LEFT - 8, foot);
    context.textAlign = 'left';
    context.fillText(`darkest: ${time(most)}`, LEFT, HEAD - 14);
  }

  /** The names of the rows; of thin rows only the extreme ones, moved apart if they are close. */
  #labels() {
    const { plan, timeline, context } = this, every = plan.row + plan.gap >= LABEL;
    const places = new Map(timeline.order.map((lane, place) => [lane, this.y(place) + plan.row / 2]));
    const named = every ? timeline.order : [...timeline.labelled.keys()].reverse(), taken = [];
    context.textAlign = 'right';
    for (const lane of named) {
      const [name, , lost] = timeline.lanes[lane], middle = places.get(lane);
      const share = lost === null ? '' : ` ${Math.round(100 * lost)} %`;
      let at = middle;
      for (const other of every ? [] : [...taken, ...taken]) {
        if (Math.abs(at - other) < LABEL) at = other + (middle < other ? -LABEL : LABEL);
      }
      taken.push(at);
      context.fillStyle = timeline.labelled.get(lane) === 'most' ? this.ink : this.soft;
      context.fillText(cut(every ? name : `${name}${share}`, LEFT - 12), LEFT - 8, at);
    }
  }

  /** A line below each row while the critical path runs through its device. */
  #path() {
    const { plan, timeline, context } = this, { path } = timeline, thick = clamp(plan.gap - 1, 1, 3);
    context.fillStyle = this.ink;
    timeline.order.forEach((lane, place) => {
      const [first, last] = path.between(lane, ...this.view), top = this.y(place) + plan.row - (plan.gap ? 0 : 1);
      let drawn = LEFT;
      for (let row = first; row < last; row++) {
        const from = Math.max(this.x(path.start[row]), drawn), to = Math.min(this.x(path.end[row]), LEFT + plan.inner);
        if (to <= from) continue;
        context.fillRect(from, top, Math.max(to - from, 0.5), thick);
        drawn = to;
      }
    });
  }

  /** Names of the events of rows with few events. */
  #names() {
    const { plan, timeline, context } = this, { events } = timeline;
    if (plan.row < 14) return;
    context.save();
    context.beginPath();
    context.rect(LEFT, HEAD, plan.inner, plan.height - HEAD - FOOT);
    context.clip();
    context.textAlign = 'left';
    timeline.order.forEach((lane, place) => {
      const [first, last] = events.between(lane, ...this.view);
      if (last - first > FEW) return;
      for (let row = first; row < last; row++) this.#event(lane, row, this.y(place));
    });
    context.restore();
  }

  /** An event: its bounds, and its name if it fits its first state; communication and copies in the lower half. */
  #event(lane, row, top) {
    const { plan, timeline, context } = this, { events } = timeline;
    const x0 = Math.max(this.x(events.start[row]), LEFT - 1), x1 = this.x(events.end[row]);
    if (x1 - x0 < 3) return;
    const [name, , sort] = timeline.kinds[events.kind[row]], lower = sort !== 'compute', half = plan.row / 2;
    context.fillStyle = '#ffffff88';
    context.fillRect(x1 - 0.5, top + (lower ? half : 0), 1, half);
    if (x1 - x0 < NAMED || !name) return;
    const [state] = timeline.states.at(lane, this.moment(x0 + NAMED / 2));
    const until = state === undefined ? x1 : Math.min(x1, this.x(timeline.states.end[state]));
    if (until - x0 < NAMED) return;
    const [, , light, dark] = state === undefined ? [] : timeline.stateKinds[timeline.states.kind[state]];
    context.fillStyle = textOn(state === undefined ? '#ffffff' : this.dark ? dark : light);
    const short = shortName(name), text = cut(short, (until - x0 - 4) * 1.2);
    if (text.length < Math.min(LETTERS, short.length)) return;
    context.font = SMALL;
    context.fillText(text, x0 + 3, top + (lower ? 1.5 : 0.5) * half);
    context.font = FONT;
  }

  /** Steps of the first row as bands above all rows. */
  #steps() {
    const { plan, timeline, context } = this, { steps } = timeline, lane = timeline.order[0];
    const [first, last] = steps.between(lane, ...this.view);
    if (last - first < plan.inner / 8) timeline.order.forEach((one, place) => this.#starts(one, this.y(place)));
    context.textAlign = 'center';
    const nameOf = (row) => timeline.stepNames[steps.kind[row]], all = Array.from({ length: Math.min(last - first, FEW) }, (_, at) => first + at);
    const whole = all.every((row) => measure(nameOf(row)) < this.x(steps.end[row]) - this.x(steps.start[row]) - 4);
    for (let row = first; row < last; row++) {
      const x0 = clamp(this.x(steps.start[row]), LEFT, LEFT + plan.inner), x1 = clamp(this.x(steps.end[row]), LEFT, LEFT + plan.inner);
      if (x1 - x0 < 1) continue;
      context.fillStyle = this.line;
      if (row % 2) context.fillRect(x0, HEAD - 18, x1 - x0, 14);
      context.fillRect(Math.round(x0), HEAD - 18, 1, 14);
      context.fillStyle = this.soft;
      const short = whole ? nameOf(row) : shortStep(nameOf(row));
      if (measure(short) < x1 - x0 - 2) context.fillText(short, (x0 + x1) / 2, HEAD - 11);
    }
  }

  /** Lines where the steps of a row begin. */
  #starts(lane, top) {
    const { plan, timeline, context } = this, [first, last] = timeline.steps.between(lane, ...this.view);
    context.fillStyle = this.ink;
    for (let row = first; row < last; row++) {
      const x = Math.round(this.x(timeline.steps.start[row]));
      if (x >= LEFT && x < LEFT + plan.inner) context.fillRect(x, top - (plan.gap > 1 ? 2 : 0), 1, plan.row + (plan.gap > 1 ? 4 : 0));
    }
  }

  /** Findings: a frame around their intervals, and their numbers above, side by side where they meet. */
  #marks() {
    const { plan, timeline, context } = this, places = new Map(timeline.order.map((lane, place) => [lane, place]));
    const middles = new Map();
    context.lineWidth = 1.5;
    context.strokeStyle = this.ink;
    for (const [lane, start, end, number] of timeline.marks) {
      const x0 = this.x(start), x1 = this.x(end);
      if (x1 < LEFT || x0 > LEFT + plan.inner) continue;
      const from = Math.max(x0, LEFT), wide = Math.max(Math.min(x1, LEFT + plan.inner) - from, 2);
      context.strokeRect(from, this.y(places.get(lane)) - 1, wide, plan.row + 2);
      const middle = from + wide / 2;
      middles.set(`${number} ${Math.round(middle / 20)}`, { number, middle });
    }
    this.numbers = [];
    context.textAlign = 'center';
    let free = LEFT;
    for (const { number, middle } of [...middles.values()].toSorted((a, b) => a.middle - b.middle)) {
      const x = Math.max(middle, free);
      free = x + 17;
      this.numbers.push({ number, x });
      context.fillStyle = this.ink;
      context.beginPath();
      context.arc(x, 11, 8, 0, 7);
      context.fill();
      context.fillStyle = this.dark ? '#000' : '#fff';
      context.fillText(number, x, 11.5);
    }
  }

  #axis() {
    const { plan, context } = this, foot = plan.height - FOOT + 2, axis = { kind: 'ns', label: 'time', unit: unitOf('ns', this.timeline.extent[1])[1], whole: true };
    const labels = ticksOf(axis, ...this.view, Math.max(Math.floor(plan.inner / 90), 2), true);
    context.fillStyle = this.soft;
    context.textAlign = 'center';
    for (const [value, text] of labels.ticks) {
      const x = this.x(value);
      context.fillRect(Math.round(x), foot, 1, 4);
      context.fillText(text, clamp(x, LEFT + measure(text) / 2, LEFT + plan.inner - measure(text) / 2), foot + 12);
    }
    context.textAlign = 'right';
    context.fillText(cut(labels.heading, LEFT - 12), LEFT - 8, foot + 12);
  }
}

const SMALL = '10px system-ui, sans-serif';

/** The function of a kernel's name, without return type, namespaces and arguments. */
const shortName = (name) => name.replace(/^void |\(anonymous namespace\)::/g, '').replace(/[<(].*$/s, '').replace(/^.*::/, '') || name;

/** The number at the end of a step's name. */
const shortStep = (name) => name.replace(/^.*[^\d](\d+)\]?$/, '$1');

/** The colour of a share of the largest value, from nearly the background to blue-black. */
function heat(share, dark) {
  const ramp = dark ? [[27, 34, 44], [33, 110, 190], [180, 225, 255]] : [[232, 240, 250], [80, 150, 215], [10, 30, 80]];
  const at = clamp(share, 0, 1) * 2, low = Math.min(Math.floor(at), 1);
  return `rgb(${ramp[low].map((one, part) => Math.round(one + (ramp[low + 1][part] - one) * (at - low))).join(' ')})`;
}

/** White or nearly black, whichever has more contrast (WCAG) on a #rrggbb. */
function textOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.215 ? '#fff' : '#1f2328';
}

/** 0xAABBGGRR of a #rrggbb, as pixels are stored. */
function pixel(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
}
