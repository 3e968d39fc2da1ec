// Marks as paths, one per colour and panel.

const DOT = 60; // lines with fewer points have dots
const THIN = 0.6; // pixels: narrower bars are drawn this wide, and joined where they touch

const place = (value) => Math.round(value * 10) / 10;
const rectangle = (x0, x1, y0, y1) => `M${place(x0)} ${place(y0)}H${place(x1)}V${place(y1)}H${place(x0)}Z`;

/** Radius of points: smaller where there are many. */
const radius = (data) => (data.mark === 'line' ? 2.2 : data.count < 500 ? 3.2 : data.count < 5000 ? 2.3 : 1.6);

/** Radius of one point. */
const radiusOf = (data, row) => radius(data) * (data.grown?.[row] ?? 1);

/** The outline of a point: circle, square, triangle or diamond of about the same area. */
function symbol(kind, x, y, size) {
  const at = (dx, dy) => `${place(x + dx * size)} ${place(y + dy * size)}`;
  if (kind === 1) return `M${at(-0.9, -0.9)}L${at(0.9, -0.9)}L${at(0.9, 0.9)}L${at(-0.9, 0.9)}Z`;
  if (kind === 2) return `M${at(0, -1.3)}L${at(1.2, 0.8)}L${at(-1.2, 0.8)}Z`;
  if (kind === 3) return `M${at(0, -1.3)}L${at(1.3, 0)}L${at(0, 1.3)}L${at(-1.3, 0)}Z`;
  const wide = place(size);
  return `M${at(-1, 0)}a${wide} ${wide} 0 1 1 ${2 * wide} 0a${wide} ${wide} 0 1 1 ${-2 * wide} 0Z`;
}

/** Points with areas and symbols, the largest first. */
function spots(data, panel, at) {
  const paths = data.colors.map(() => []);
  const rows = data.inPanel[panel].filter((row) => data.isVisible(row) && at.covers(data.at[row], data.at[row]));
  for (const row of rows.sort((a, b) => radiusOf(data, b) - radiusOf(data, a))) {
    paths[data.color[row]].push(symbol(data.symbolOf?.[row] ?? 0, at.x(data.at[row]), at.y(data.value[row]), radiusOf(data, row)));
  }
  return paths.map((path) => ({ kind: 'spots', d: path.join('') }));
}

/** Reference lines with their labels: at the right end of level ones, along the others. */
function references(data, at) {
  return data.lines.flatMap(([label, x, y, x2, y2]) => {
    const [left, right] = [at.x(x), at.x(x2)], [from, to] = [at.y(y), at.y(y2)], flat = y === y2;
    const angle = Math.atan2(to - from, right - left) * 180 / Math.PI;
    const begin = Math.max(left, at.left), share = (begin - left) / (right - left || 1);
    const end = Math.min(right, at.left + at.width);
    const text = flat
      ? svg('text', { class: 'roof', x: place(end - 4), y: place(from - 5), 'text-anchor': 'end' }, label)
      : svg('text', { class: 'roof', transform: `translate(${place(begin + 6)} ${place(from + (to - from) * share - 8)}) rotate(${place(angle)})` }, label);
    return [svg('path', { class: 'roof', d: `M${place(left)} ${place(from)}L${place(right)} ${place(to)}` }), text];
  });
}

/** Points as dots of a round pen; coinciding points are drawn once. */
function dots(data, panel, at) {
  const paths = data.colors.map(() => []), taken = data.colors.map(() => new Set());
  for (const row of data.inPanel[panel]) {
    if (!data.isVisible(row) || !at.covers(data.at[row], data.at[row])) continue;
    const x = Math.round(at.x(data.at[row]) * 2), y = Math.round(at.y(data.value[row]) * 2);
    const key = x * 65536 + y, color = data.color[row];
    if (taken[color].has(key)) continue;
    taken[color].add(key);
    paths[color].push(`M${x / 2} ${y / 2}h0`);
  }
  return paths.map((path) => ({ kind: 'dots', d: path.join('') }));
}

/** Lines; of each column of pixels the first, the lowest, the highest and the last point. */
function lines(data, panel, at) {
  const series = data.colors.map(() => []);
  for (const row of data.inPanel[panel]) if (data.isVisible(row)) series[data.color[row]].push(row);
  return series.flatMap((rows, color) => {
    const visible = inView(data, rows, at);
    const places = visible.map((row) => [at.x(data.at[row]), at.y(data.value[row])]);
    const points = places.length > 4 * at.width ? perColumn(places) : places;
    const path = points.map(([x, y]) => `${place(x)} ${place(y)}`).join('L');
    const parts = [{ color, kind: 'line', d: path && `M${path}` }];
    if (visible.length < DOT) parts.push({ color, kind: 'dots', d: places.map(([x, y]) => `M${place(x)} ${place(y)}h0`).join('') });
    return parts;
  });
}

/** The rows of a line within the view, and its neighbours on both sides. */
function inView(data, rows, at) {
  let first = rows.findIndex((row) => data.at[row] >= at.view[0]), last = rows.length;
  if (first < 0) first = rows.length;
  while (last > 0 && data.at[rows[last - 1]] > at.view[1]) last--;
  return rows.slice(Math.max(first - 1, 0), last + 1);
}

function perColumn(points) {
  const kept = [];
  for (let from = 0, to; from < points.length; from = to) {
    const pixel = Math.floor(points[from][0]);
    let low = from, high = from;
    for (to = from; to < points.length && Math.floor(points[to][0]) === pixel; to++) {
      if (points[to][1] < points[low][1]) low = to;
      if (points[to][1] > points[high][1]) high = to;
    }
    for (const one of [...new Set([from, low, high, to - 1])].sort((a, b) => a - b)) kept.push(points[one]);
  }
  return kept;
}

/** Bars; adjacent bars of a lane that are narrower than a pixel are merged. */
function bars(data, panel, at) {
  const paths = data.colors.map(() => []), open = data.colors.map(() => new Map());
  const gap = data.mark === 'bar' && data.width && at.scale * data.width > 4 ? 1 : 0;
  const close = (color, box) => paths[color].push(rectangle(box.x0, box.x1, box.y0, box.y1));
  for (const row of data.inPanel[panel]) {
    if (!data.isVisible(row) || !at.covers(data.x0[row], data.x1[row])) continue;
    const color = data.color[row], box = at.box(row, data), lane = data.mark === 'span' ? data.value[row] : row;
    box.x1 = Math.max(box.x1 - gap, box.x0 + THIN);
    const last = open[color].get(lane);
    if (last && box.x0 >= last.x0 && box.x0 <= last.x1 + THIN && box.x1 - box.x0 <= 1) {
      last.x1 = Math.max(last.x1, box.x1);
      continue;
    }
    if (last) close(color, last);
    open[color].set(lane, box);
  }
  open.forEach((boxes, color) => boxes.forEach((box) => close(color, box)));
  return paths.map((path) => ({ kind: 'bars', d: path.join('') }));
}

/** The paths of a panel: kind and colour index of each. */
function paths(data, panel, at) {
  const shapes = { scatter: data.grown || data.symbolOf ? spots : dots, line: lines, bar: bars, span: bars }[data.mark](data, panel, at);
  return shapes.map((path, color) => ({ color, ...path })).filter(({ d }) => d);
}

/** Labels with the length of bars. */
function lengths(data, panel, at) {
  const rows = data.alone ? data.inPanel[panel].filter((row) => data.isVisible(row) && at.covers(data.x1[row], data.x1[row])) : [];
  return rows.map((row) => {
    const { x1, y0, y1 } = at.box(row, data), text = format(data.x, data.x1[row]);
    if (y1 - y0 < 11 || x1 + 6 + measure(text) > at.left + at.width) return '';
    return svg('text', { class: 'length', x: place(x1 + 6), y: place((y0 + y1) / 2 + 4) }, text);
  }).filter(Boolean);
}

/** A ring around a point, a frame around a bar. */
function outline(data, row, at, grown) {
  const box = at.box(row, data);
  if (data.mark === 'bar' || data.mark === 'span') return rectangle(box.x0, Math.max(box.x1, box.x0 + 1), box.y0, box.y1);
  const size = radiusOf(data, row) + grown;
  return `M${place(box.x0 - size)} ${place(box.y0)}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`;
}

/** The mark nearest to a position, if close enough. */
function nearest(data, panel, at, x, y) {
  let best = null, least = data.mark === 'scatter' || data.mark === 'line' ? 30 : 8, size = Infinity;
  for (const row of data.inPanel[panel]) {
    if (!data.isVisible(row) || !at.covers(data.x0[row], data.x1[row])) continue;
    const box = at.box(row, data);
    const far = Math.hypot(Math.max(box.x0 - x, x - box.x1, 0), Math.max(box.y0 - y, y - box.y1, 0));
    const wide = box.x1 - box.x0;
    if (far > least || (far === least && wide >= size)) continue;
    [best, least, size] = [row, far, wide];
  }
  return best;
}
