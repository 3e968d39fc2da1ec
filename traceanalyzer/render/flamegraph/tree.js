// The tree of boxes, and trees derived from it. Nothing is drawn here.
// A node: id (index in the file), name, place, fill, total, self, base, hidden, ownCode, imports, parent,
// children.

/** The tree of a drawing: names from its titles, which are removed, depths from its rows,
 *  weights from its metadata. */
function readTree(svg) {
  const data = JSON.parse(svg.querySelector('metadata').textContent);
  const hidden = new Set(data.hidden), ownCode = new Set(data.own_code);
  const imports = new Set(data.imports), path = [];
  const nodes = Array.from(svg.querySelectorAll('.boxes > rect'), (el, id) => {
    const lines = el.textContent.split('\n'), depth = el.getAttribute('y') / ROW;
    const node = {
      id, el, name: lines[0], place: lines.length > 2 ? lines[1] : '',
      fill: el.getAttribute('fill'), total: data.total[id], self: data.self[id],
      base: data.base ? data.base[id] : 0, hidden: hidden.has(id), ownCode: ownCode.has(id),
      imports: imports.has(id),
      parent: depth ? path[depth - 1] : null, children: [],
    };
    path[depth] = node;
    if (node.parent) node.parent.children.push(node);
    el.textContent = '';
    return node;
  });
  return { nodes, root: nodes[0], data };
}

/** A node for the same frame in another tree, without weight. */
function blank(node, parent) {
  const { id, name, place, fill, hidden, ownCode, imports } = node;
  return {
    id, name, place, fill, hidden, ownCode, imports, parent, el: null, total: 0, self: 0, base: 0, children: [],
    byKey: null,
  };
}

function add(node, total, self, base) {
  node.total += total;
  node.self += self;
  node.base += base;
}

/** The function of a box: its name and file without lines. */
function functionOf(node) {
  return `${node.name}\n${node.place.replace(/:[\d-]+$/, '')}`;
}

/** The topmost matching boxes: the sum of their weights counts no sample twice. */
function outermost(nodes, test) {
  const inside = new Set(), matches = [];
  for (const node of nodes) {
    if (inside.has(node.parent)) inside.add(node);
    else if (test(node)) {
      inside.add(node);
      matches.push(node);
    }
  }
  return { matches, inside };
}

/** Only the stacks through matching boxes; callers keep only that part of their weight. */
function throughOnly(nodes, test) {
  const { inside } = outermost(nodes, test), kept = new Map();
  for (let at = nodes.length - 1; at >= 0; at--) {
    const node = nodes[at];
    if (inside.has(node)) {
      kept.set(node, blank(node, null));
      add(kept.get(node), node.total, node.self, node.base);
    }
    const copy = kept.get(node);
    if (!copy || !node.parent || inside.has(node.parent)) continue;
    if (!kept.has(node.parent)) kept.set(node.parent, blank(node.parent, null));
    add(kept.get(node.parent), copy.total, 0, copy.base);
  }
  for (const node of nodes) {
    const copy = kept.get(node);
    if (!copy || !node.parent) continue;
    copy.parent = kept.get(node.parent);
    copy.parent.children.push(copy);
  }
  return kept.get(nodes[0]);
}

/** Two trees of one function: its callees and its callers; recursion counts once. */
function aroundFunction(nodes, test) {
  const { matches } = outermost(nodes, test);
  const down = blank(matches[0], null), up = blank(matches[0], null);
  for (const start of matches) {
    add(up, start.total, 0, start.base);
    for (let node = start.parent, at = up; node; node = node.parent) {
      at = childLike(at, node);
      add(at, start.total, 0, start.base);
    }
    const open = [[start, down]];
    while (open.length) {
      const [node, into] = open.pop();
      add(into, node.total, node.self, node.base);
      for (const child of node.children) open.push([child, childLike(into, child)]);
    }
  }
  return { down: sorted(down), up: sorted(up) };
}

function childLike(parent, node) {
  const key = `${node.name}\n${node.place}`;
  parent.byKey ||= new Map();
  if (!parent.byKey.has(key)) {
    const child = blank(node, parent);
    parent.byKey.set(key, child);
    parent.children.push(child);
  }
  return parent.byKey.get(key);
}

/** Callees in the order of the drawing: heaviest first, the sum of small ones last. */
function sorted(root) {
  const order = (a, b) => a.hidden - b.hidden || b.total - a.total || (a.name < b.name ? -1 : 1);
  for (const node of walk(root)) node.children.sort(order);
  return root;
}

/** The whole tree without some code. Imports are left out with all they call; the time of libraries
 *  below own code goes to the own function that called them; onlyOwn leaves out all other stacks. */
function filtered({ nodes, root }, { imports, libraries, onlyOwn }) {
  const shown = new Map(), inOwn = new Set(), gone = new Set(), top = blank(root, null);
  if (onlyOwn && !root.ownCode) Object.assign(top, { name: 'own code', place: '' });
  for (const node of nodes) {
    const { parent } = node, below = inOwn.has(parent);
    if (gone.has(parent) || (imports && node.imports)) {
      gone.add(node);
      continue;
    }
    if (node.ownCode || below) inOwn.add(node);
    const into = parent ? shown.get(parent) : top;
    const folded = !node.ownCode && (onlyOwn || (libraries && below));
    shown.set(node, !parent || folded ? into : childLike(into, node));
    if (onlyOwn && !inOwn.has(node)) continue;
    const base = node.children.reduce((rest, child) => rest - child.base, node.base);
    add(shown.get(node), node.self, node.self, Math.max(base, 0));
  }
  const whole = summed(top);
  return { root: whole, nodes: walk(whole) };
}

/** Adds the weights of the callees to each node, and drops those without. */
function summed(root) {
  for (const node of walk(root).reverse()) {
    node.children = node.children.filter(({ total, base }) => total || base);
    for (const { total, base } of node.children) add(node, total, 0, base);
  }
  return sorted(root);
}

/** A node and its descendants, callers first, left to right. */
function walk(root) {
  const nodes = [], open = [root];
  while (open.length) {
    const node = open.pop();
    nodes.push(node);
    for (let at = node.children.length - 1; at >= 0; at--) open.push(node.children[at]);
  }
  return nodes;
}

/** Sets the positions of the nodes of a tree: x and w as shares of the width, row from its root. */
function place(root, zoomed) {
  const callers = [];
  for (let node = zoomed.parent; node; node = node.parent) callers.unshift(node);
  callers.forEach((node, row) => Object.assign(node, { x: 0, w: 1, row, caller: true }));
  Object.assign(zoomed, { x: 0, w: 1, row: callers.length, caller: false });
  const below = walk(zoomed);
  for (const node of below) {
    let x = node.x;
    for (const child of node.children) {
      const w = zoomed.total ? child.total / zoomed.total : 0;
      Object.assign(child, { x, w, row: node.row + 1, caller: false });
      x += w;
    }
  }
  return callers.concat(below);
}

/** The last row that placed nodes reach. */
function deepest(nodes) {
  return nodes.reduce((most, { row }) => Math.max(most, row), 0);
}
