// Drawing of nodes as rectangles and names; formatting of weights.

const SVG = 'http://www.w3.org/2000/svg', XHTML = 'http://www.w3.org/1999/xhtml';
const GROUPED = new Intl.NumberFormat('en-US', { maximumFractionDigits: 2 });
const ROW = 18, CHAR = 7.3, NARROWEST = 24;

/** An element with attributes and children; text is always a text node, never markup. */
function make(space, tag, attributes = {}, ...children) {
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const html = (tag, attributes, ...children) => make(XHTML, tag, attributes, ...children);
const svg = (tag, attributes, ...children) => make(SVG, tag, attributes, ...children);

/** Sets an attribute unless it has that value: a change is far slower than a test. */
function set(element, name, value) {
  if ((element.getAttribute(name) || '') !== value) element.setAttribute(name, value);
}

const percent = (part) => `${Math.round(part * 1e6) / 1e4}%`;

/** A weight with its unit, as in the titles of the drawing. */
function weight(value, { unit, scales }) {
  if (scales.length) {
    const [factor, name] = scales.find(([size]) => Math.abs(value) >= size) || scales.at(-1);
    return `${Number((value / factor).toPrecision(4))} ${name}`;
  }
  return `${GROUPED.format(value)} ${value === 1 ? unit.replace(/s$/, '') : unit}`.trimEnd();
}

function share(value, of) {
  const frac = of ? value / of : 0;
  return frac > 0 && frac < 0.0005 ? '< 0.1 %' : `${(100 * frac).toFixed(1)} %`;
}

/** The colour of a change: the difference divided by the larger of both, in steps. */
function changeFill(node, changes) {
  const change = (node.total - node.base) / (Math.max(node.total, node.base) || 1);
  return changes[Math.round((change + 1) / 2 * (changes.length - 1))];
}

class Stage {
  constructor(root, data) {
    this.data = data;
    this.root = root;
    this.stage = root.querySelector('.stage');
    this.boxes = root.querySelector('.boxes');
    this.names = root.querySelector('.names');
    this.ring = svg('rect', { class: 'ring', height: ROW, visibility: 'hidden' });
    this.stage.append(this.ring);
    this.stage.setAttribute('width', '100%');
    this.boxes.setAttribute('role', 'tree');
    // a group that listens to focus is in the tab order of Chromium
    this.boxes.setAttribute('tabindex', '-1');
    this.nodeOf = new WeakMap();
    this.drawn = [];
  }

  /** Draws nodes with positions; rows count from the root. */
  draw(nodes, rows, rootBelow) {
    this.rows = Array.from({ length: rows }, () => []);
    this.width = this.root.getBoundingClientRect().width;
    this.drawn = this.#visible(nodes, rows);
    for (const node of this.drawn) {
      node.y = (rootBelow ? rows - 1 - node.row : node.row) * ROW;
      this.rows[node.row].push(node);
      this.#rect(node);
    }
    set(this.stage, 'height', String(rows * ROW));
    this.boxes.replaceChildren(...this.drawn.map((node) => node.el));
    this.#label();
    this.mark(null);
  }

  /** Drops boxes that end in the same pixel as the one before them. */
  #visible(nodes, rows) {
    const ends = new Float64Array(rows).fill(-1);
    return nodes.filter((node) => {
      const end = Math.ceil((node.x + node.w) * this.width);
      if (end === ends[node.row]) return false;
      ends[node.row] = end;
      return true;
    });
  }

  #rect(node) {
    if (!node.el) {
      const changed = this.data.changes && !node.hidden;
      const fill = changed ? changeFill(node, this.data.changes) : node.fill;
      node.el = svg('rect', { height: ROW, fill });
    }
    const el = node.el;
    if (!this.nodeOf.has(el)) {
      el.setAttribute('role', 'treeitem');
      el.setAttribute('aria-label', `${node.name}, ${weight(node.total, this.data)}`);
      this.nodeOf.set(el, node);
    }
    set(el, 'x', percent(node.x));
    const thin = node.w * this.width < 1;
    set(el, 'width', percent(thin ? 1 / this.width : node.w));
    set(el, 'y', String(node.y));
    set(el, 'stroke', thin ? 'none' : '');
    set(el, 'aria-level', String(node.row + 1));
  }

  /** Writes the names that fit. */
  #label() {
    const { width } = this, labels = [];
    for (const node of this.drawn) {
      if (node.w * width < NARROWEST) continue;
      const room = Math.floor((node.w * width - 6) / CHAR);
      const name = node.name.length <= room ? node.name : `${node.name.slice(0, room - 1)}\u2026`;
      const text = svg('text', { x: 3, y: 13 }, name);
      if (node.ownCode) text.setAttribute('font-weight', 'bold');
      labels.push(svg('svg', {
        x: percent(node.x), y: node.y, width: percent(node.w), height: ROW,
      }, text));
    }
    this.names.replaceChildren(...labels);
  }

  /** Sets classes: callers of the zoomed box, matching boxes, other boxes. */
  tint(test) {
    for (const node of this.drawn) {
      const hit = test ? (test(node) ? 'hit' : 'miss') : '';
      set(node.el, 'class', node.caller ? `caller ${hit}` : hit);
    }
  }

  /** Draws the keyboard focus around a box. */
  mark(node) {
    this.ring.setAttribute('visibility', node ? 'visible' : 'hidden');
    if (!node) return;
    for (const name of ['x', 'y', 'width']) this.ring.setAttribute(name, node.el.getAttribute(name));
  }

  /** The neighbouring box: in the next row the widest adjacent one; within a row the next. */
  neighbour(node, step, sideways) {
    const row = this.rows[node.row];
    if (sideways) return row[row.indexOf(node) + step];
    const touching = (this.rows[node.row + step] || [])
      .filter((other) => other.x < node.x + node.w && node.x < other.x + other.w);
    return touching.sort((a, b) => b.w - a.w)[0];
  }
}
