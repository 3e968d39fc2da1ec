// Formatting of numbers.

const GROUPED = new Intl.NumberFormat('en');
const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
const TIMES = [['s', 1e9], ['ms', 1e6], ['us', 1e3], ['ns', 1]];

function bytes(size) {
  let unit = 0;
  for (; Math.abs(size) >= 1024 && unit < SIZES.length - 1; unit++) size /= 1024;
  return unit ? `${Number(size.toPrecision(4))} ${SIZES[unit]}` : `${Math.round(size)} B`;
}

function time(ns) {
  const [unit, factor] = TIMES.find(([, one]) => Math.abs(ns) >= one) || TIMES.at(-1);
  return `${Number((ns / factor).toPrecision(4))} ${unit}`;
}

const events = (count) => `${GROUPED.format(count)} event${count === 1 ? '' : 's'}`;
const percent = (part, whole) => `${(100 * (whole ? part / whole : 0)).toFixed(1)} %`;

/** Ticks between two sizes, a power of two apart. */
function byteTicks(from, to, most) {
  const step = 2 ** Math.max(Math.ceil(Math.log2(Math.max(to - from, 1) / most)), 0);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, at) => (first + at) * step);
}

/** The label of a tick, in a unit in which ticks a step apart differ. */
function byteTick(size, step) {
  const unit = Math.max(Math.floor(Math.log2(step * 8) / 10), 0);
  if (size < 1024 ** (unit + 1)) return bytes(size);
  return `${GROUPED.format(size / 1024 ** unit)} ${SIZES[unit]}`;
}

/** Ticks between two values, 1, 2 or 5 times a power of ten apart. */
function roundTicks([from, to], most) {
  const rough = Math.max((to - from) / most, 1), power = 10 ** Math.floor(Math.log10(rough) + 1e-9);
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9));
  const first = Math.ceil(from / step - 1e-9), count = Math.floor(to / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, at) => (first + at) * step);
}

/** A position on the axis, with the decimals that its step needs. */
function place(x, step, timed) {
  if (!timed) return GROUPED.format(Math.round(x));
  if (!x) return '0';
  const [unit, factor] = TIMES.find(([, one]) => Math.abs(x) >= one) || TIMES.at(-1);
  const decimals = clamp(Math.ceil(-Math.log10(step / factor) - 1e-9), 0, 9);
  return `${(x / factor).toFixed(decimals)} ${unit}`;
}

/** 0xAABBGGRR of a #rrggbb, as pixels are stored, mixed with another colour. */
function pixel(color, other = color, share = 0) {
  const parts = [1, 3, 5].map((at) => {
    const [one, two] = [color, other].map((text) => parseInt(text.slice(at, at + 2), 16));
    return Math.round(one + (two - one) * share);
  });
  return (255 << 24 | parts[2] << 16 | parts[1] << 8 | parts[0]) >>> 0;
}
