// Formatting of numbers, and ticks of an axis. Units are those of render/text.py.

const UNITS = {
  ns: [[1e9, 's'], [1e6, 'ms'], [1e3, 'us'], [1, 'ns']],
  bytes: [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']],
  frac: [[0.01, '%']],
  gbps: [[1, 'GB/s']],
  tflops: [[1, 'TFLOP/s']],
};
const LONG = 1e5; // steps from 0 beyond which ticks count from a nearby origin
const formats = new Map();

function number(value, decimals, grouped = true) {
  const key = `${decimals} ${grouped}`;
  if (!formats.has(key)) {
    formats.set(key, new Intl.NumberFormat('en', {
      minimumFractionDigits: decimals, maximumFractionDigits: decimals, useGrouping: grouped,
    }));
  }
  return formats.get(key).format(value === 0 ? 0 : value);
}

/** The largest unit of a kind in which a value is at least 1. */
function unitOf(kind, value) {
  const units = UNITS[kind] ?? [[1, '']];
  return units.find(([factor]) => value >= factor) ?? units.at(-1);
}

/** The unit of an interval: that of the whole axis, or a smaller one when zoomed. */
function unitAt(axis, from, to, zoomed) {
  const whole = (UNITS[axis.kind] ?? [[1, '']]).find(([, unit]) => unit === axis.unit) ?? [1, ''];
  const near = unitOf(axis.kind, to - from);
  return zoomed && near[0] < whole[0] ? near : whole;
}

const heading = (label, unit) => (unit ? `${label} [${unit}]`.trim() : label);

/** A value with its unit, with this number of digits. */
function format(axis, value, digits = 4) {
  if (axis.names) return axis.names[Math.round(value)] ?? '';
  if (axis.kind === 'frac') return `${number(100 * value, clamp(digits - 3, 1, 9))} %`;
  if (!axis.kind && axis.whole) return number(value, 0, axis.grouped);
  const [factor, unit] = unitOf(axis.kind, Math.abs(value)), size = Math.abs(value / factor);
  const before = size >= 1 ? Math.floor(Math.log10(size)) + 1 : size > 0 ? Math.floor(Math.log10(size)) + 1 : 1;
  const whole = axis.whole && factor === 1;
  const text = number(value / factor, whole ? 0 : clamp(digits - before, 0, 9), axis.grouped);
  const short = text.includes('.') ? text.replace(/\.?0+$/, '') : text;
  return unit ? `${short} ${unit}` : short;
}

/** A position on an axis, with the digits needed for the span of the view. */
function formatPlace(axis, value, span) {
  const digits = 4 + Math.max(Math.ceil(Math.log10(Math.abs(value || 1) / (span || 1))), 0);
  return format(axis, value, clamp(digits, 4, 15));
}

/** The smallest 1, 2 or 5 times a power of ten that is at least this. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least) + 1e-9);
  return power * ([1, 2, 5].find((times) => times * power >= least * (1 - 1e-9)) ?? 10);
}

/** At most this many ticks between two values, and the heading of the axis. */
function ticksOf(axis, from, to, most, zoomed = false) {
  const [factor, unit] = unitAt(axis, from, to, zoomed);
  const low = from / factor, high = to / factor;
  let step = roundStep((high - low) / Math.max(most, 1));
  if (axis.whole) step = Math.max(step, 1 / factor);
  const decimals = clamp(-Math.floor(Math.log10(step) + 1e-9), 0, 9);
  let origin = 0, label = axis.label;
  if (zoomed && Math.max(Math.abs(low), Math.abs(high)) / step > LONG) {
    const round = 10 ** Math.ceil(Math.log10(high - low) - 1e-9);
    origin = Math.floor(low / round) * round;
    label = `${label} after ${formatPlace(axis, origin * factor, round * factor)}`;
  }
  const first = Math.ceil((low - origin) / step - 1e-6), last = Math.floor((high - origin) / step + 1e-6);
  const count = clamp(last - first + 1, 0, 2 * most + 2) || 0; // bounded where steps are below the precision
  const ticks = Array.from({ length: count }, (_, at) => [
    (origin + (first + at) * step) * factor, number((first + at) * step, decimals, axis.grouped),
  ]);
  return { ticks, heading: heading(label, unit) };
}

/** The ticks of a logarithmic axis: powers of ten, or 1, 2 and 5 times them on short axes. */
function logTicksOf(axis, from, to, most) {
  const [factor, unit] = unitAt(axis, from, to, false), low = from / factor, high = to / factor;
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), ticks = [];
  const between = high < 100 * low ? [1, 2, 5] : [1];
  const every = Math.max(Math.ceil((last - first) / Math.max(most, 1)), 1);
  for (let power = first; power <= last; power += every) {
    for (const times of between) {
      const value = times * 10 ** power;
      if (value < low || value > high) continue;
      ticks.push([value * factor, number(value, clamp(-power, 0, 9), axis.grouped)]);
    }
  }
  return ticks.length > 1 ? { ticks, heading: heading(axis.label, unit) } : ticksOf(axis, from, to, most);
}
