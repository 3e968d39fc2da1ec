// Layout of the picture; axes, grid and labels.

const WIDE = 600; // pixels; wider pictures are higher
const BROAD = 84; // largest width of named bars in pixels
const RIGHT = 18, ROW = 18, GAP = 10, TILT = 40, LINE = 15, BETWEEN = 14, BOLD = 0.88;
const SIN = Math.sin(TILT * Math.PI / 180), COS = Math.cos(TILT * Math.PI / 180);

/** The scales of one panel: values to pixels. */
class Places {
  constructor(data, view, left, width, top, height) {
    Object.assign(this, { view, left, width, top, height });
    this.scale = width / (view[1] - view[0]);
    this.logged = data.log;
    this.down = data.mark === 'span';
    this.slim = data.mark === 'bar' && !data.width ? Math.min(BROAD / (BAR * this.scale), 1) : 1;
    const [low, high] = data.up;
    [this.low, this.high] = this.logged ? [Math.log(low), Math.log(high)] : [low, high];
  }

  x(value) {
    return clamp(this.left + (value - this.view[0]) * this.scale, -1e5, 1e5);
  }

  y(value) {
    const at = this.logged ? value > 0 ? Math.log(value) : this.low : value;
    const share = clamp((at - this.low) / (this.high - this.low), -1, 2);
    return this.top + this.height * (this.down ? share : 1 - share);
  }

  covers(from, to) {
    return to >= this.view[0] && from <= this.view[1];
  }

  /** The rectangle of a row, its lower numbers first. */
  box(row, data) {
    const [one, other] = [this.y(data.y0[row]), this.y(data.y1[row])], middle = data.at[row];
    const [x0, x1] = [data.x0[row], data.x1[row]].map((side) => this.x(middle + (side - middle) * this.slim));
    return { x0, x1, y0: Math.min(one, other), y1: Math.max(one, other) };
  }
}

/** Heights and margins for a width. */
function layout(data, width) {
  const panels = data.panels.length, tall = width >= WIDE, names = data.y.names;
  let height = panels > 1 ? 96 : tall ? 290 : 220;
  if (names) height = clamp(names.length * (panels > 1 ? 18 : 24), panels > 1 ? 60 : 64, panels > 1 ? 240 : 620);
  const each = upright(data, height), labels = each.ticks.map(([, text]) => measure(text));
  const room = names ? Math.floor(width * (tall ? 0.34 : 0.38)) : 90;
  const left = Math.ceil(Math.min(Math.max(...labels, 20), room)) + 14;
  const head = ROW + 2, title = panels > 1 ? ROW : 0;
  const tops = data.panels.map((_, panel) => head + title + panel * (height + title + GAP));
  return { width, left, inner: Math.max(width - left - RIGHT, 40), height, tops, heading: each.heading, foot: tops.at(-1) + height, room };
}

/** Ticks and heading of the vertical axis. */
function upright(data, height) {
  const [low, high] = data.up;
  if (data.y.names) return named(data.y, low, high, height / LINE);
  const most = Math.max(Math.floor(height / (data.panels.length > 1 ? 28 : 44)), 2);
  return (data.log ? logTicksOf : ticksOf)(data.y, low, high, most);
}

/** Every n-th name within an interval, at most this many. */
function named(axis, from, to, most) {
  const first = Math.max(Math.ceil(from), 0), last = Math.min(Math.floor(to), axis.names.length - 1);
  const every = Math.max(Math.ceil((last - first + 1) / Math.max(most, 1)), 1), ticks = [];
  for (let at = Math.ceil(first / every) * every; at <= last; at += every) ticks.push([at, axis.names[at]]);
  return { ticks, heading: axis.label };
}

/** The ticks of the horizontal axis, whose labels do not overlap. */
function level(data, at, zoomed) {
  const [from, to] = at.view, axis = data.x;
  if (axis.names) return levelNames(axis, from, to, at);
  for (let most = Math.max(Math.floor(at.width / 56), 2); ; most = Math.floor(most * 0.75)) {
    const labels = data.logX ? logPlaces(data, axis, from, to, most) : ticksOf(axis, from, to, most, zoomed);
    const widest = Math.max(0, ...labels.ticks.map(([, text]) => measure(text)));
    const apart = labels.ticks.length > 1 ? (labels.ticks[1][0] - labels.ticks[0][0]) * at.scale : Infinity;
    if (apart >= widest + BETWEEN || most < 2) return { ...labels, tilted: false, deep: LINE };
  }
}

/** The ticks of a logarithmic axis, at the logarithms of their values. */
function logPlaces(data, axis, from, to, most) {
  const { ticks, heading: text } = logTicksOf(axis, data.valueAt(from), data.valueAt(to), most);
  return { ticks: ticks.map(([value, label]) => [Math.log10(value), label]).filter(([at]) => Number.isFinite(at)), heading: text };
}

function levelNames(axis, from, to, at) {
  const all = named(axis, from, to, Infinity), widest = Math.max(0, ...all.ticks.map(([, text]) => measure(text)));
  const fit = at.width / (widest + BETWEEN);
  if (all.ticks.length <= fit || widest < 44) return { ...named(axis, from, to, Math.max(fit, 1)), tilted: false, deep: LINE };
  const labels = named(axis, from, to, at.width / 20), room = 120;
  const ticks = labels.ticks.map(([place, text]) => [place, cut(text, Math.min(room, (at.x(place) - 4) / COS))]);
  const deep = Math.max(...ticks.map(([, text]) => measure(text))) * SIN + LINE;
  return { ticks, heading: labels.heading, tilted: true, deep: Math.ceil(deep) };
}

/** Ticks and labels along the foot, and its height. */
function footer(data, at, plan, zoomed) {
  const { ticks, heading: text, tilted, deep } = level(data, at, zoomed), parts = [];
  let free = -Infinity;
  for (const [value, label] of ticks) {
    const x = at.x(value), half = measure(label) / 2, middle = clamp(x, half + 1, plan.width - half - 1);
    parts.push(svg('path', { class: 'tick', d: `M${sharp(x)} ${plan.foot}v4` }));
    if (tilted) {
      const turned = `translate(${place(x + 4)} ${plan.foot + 14}) rotate(-${TILT})`;
      parts.push(svg('text', { class: 'x', 'text-anchor': 'end', transform: turned }, label));
    } else if (middle - half > free) {
      parts.push(svg('text', { class: 'x', x: place(middle), y: plan.foot + 17, 'text-anchor': 'middle' }, label));
      free = middle + half + 4;
    }
  }
  const y = plan.foot + deep + (text ? ROW + 2 : 4);
  if (text) parts.push(svg('text', { class: 'label', x: plan.left + plan.inner / 2, y: y - 2, 'text-anchor': 'middle' }, cut(text, plan.width - 8)));
  const lines = data.mark === 'bar' ? [] : ticks.map(([value]) => sharp(at.x(value)));
  return { parts, lines, height: y + 6 };
}

/** Grid and labels of one panel. */
function frame(data, panel, at, plan, lines) {
  const parts = [], right = plan.left + plan.inner, foot = at.top + at.height;
  if (plan.tops.length > 1) {
    parts.push(svg('text', { class: 'panel', x: plan.left, y: at.top - 6 }, cut(data.panels[panel], plan.inner * BOLD)));
  }
  if (lines.length) parts.push(svg('path', { class: 'grid', d: lines.map((x) => `M${x} ${at.top}V${foot}`).join('') }));
  for (const [value, label] of upright(data, at.height).ticks) {
    const y = at.y(value);
    if (!data.y.names) parts.push(svg('path', { class: 'grid', d: `M${plan.left} ${sharp(y)}H${right}` }));
    parts.push(svg('text', { class: data.y.names ? 'y name' : 'y', x: plan.left - 8, y: place(y + 4), 'text-anchor': 'end' }, cut(label, plan.room)));
  }
  parts.push(svg('path', { class: 'base', d: data.y.names ? `M${sharp(plan.left - 1)} ${at.top}V${foot}` : `M${plan.left} ${sharp(foot)}H${right}` }));
  return parts;
}
