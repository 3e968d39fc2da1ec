// Elements, and the width of text.

const SVG = 'http://www.w3.org/2000/svg', FONT = '12px system-ui, sans-serif';
const pen = document.createElement('canvas').getContext('2d');
const widths = new Map();

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== ''));
  return element;
}

const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

/** The width of a label in pixels. */
function measure(text) {
  if (!widths.has(text)) {
    pen.font = FONT;
    widths.set(text, pen.measureText(text).width);
  }
  return widths.get(text);
}

/** Text shortened to a width by cutting its middle. */
function cut(text, room) {
  if (measure(text) <= room) return text;
  const letters = Array.from(text);
  let short = 1, long = letters.length;
  const kept = (count) => {
    const tail = count >> 1;
    return `${letters.slice(0, count - tail).join('')}\u2026${tail ? letters.slice(-tail).join('') : ''}`;
  };
  while (short < long) {
    const middle = (short + long + 1) >> 1;
    if (measure(kept(middle)) <= room) short = middle;
    else long = middle - 1;
  }
  return kept(short);
}

/** Moves a tooltip beside the pointer, inside the window; above it rather than over a box of details below. */
function placeTip(tip, event, box) {
  const { width, height } = tip.getBoundingClientRect(), top = box?.childElementCount ? box.getBoundingClientRect().top : 0;
  const x = event.clientX + 14 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 14;
  const y = event.clientY + 16, until = top > event.clientY ? Math.min(top, innerHeight) : innerHeight;
  tip.style.left = `${Math.max(x, 4)}px`;
  tip.style.top = `${Math.max(y + height + 4 > until ? event.clientY - height - 12 : y, 4)}px`;
}

/** A list of names and values. */
const facts = (pairs) => html('dl', {}, ...pairs.map(([name, text]) => html('div', {}, html('dt', {}, name), html('dd', {}, text))));

/** The middle of a pixel, where a thin line is sharp. */
const sharp = (place) => Math.round(place) + 0.5;

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** A colour that is visible on a dark background. */
function onDark(color) {
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const light = 0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2];
  const share = light < 90 ? (90 - light) / 200 : 0;
  return `rgb(${parts.map((part) => Math.round(part + (255 - part) * share)).join(' ')})`;
}
