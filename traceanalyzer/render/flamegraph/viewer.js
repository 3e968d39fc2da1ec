// The controls of a drawing: header, keys, pointer, and the state in the address.

const HINT = 'Click a frame to zoom. Keys: arrows and Enter, f focus, c callers, i roots at bottom, / search, '
  + '0 reset.';
const FILTERS = ['imports', 'libraries', 'onlyOwn'];
const START = {
  view: '', of: -1, zoom: -1, find: '', exact: false, up: false, imports: false, libraries: false,
  onlyOwn: false,
};

class Viewer {
  constructor(root, index) {
    this.root = root;
    this.key = index ? `${index}.` : '';
    this.tree = readTree(root);
    this.stage = new Stage(root, this.tree.data);
    this.shown = this.tree;
    this.trees = new Map();
    this.selected = this.tree.root;
    this.#head();
    this.#listen();
    root.classList.add('live');
    if (root !== document.documentElement) this.#untitle();
    root.removeAttribute('viewBox');
    this.restore();
  }

  /** Removes the title of the drawing, which would be a tooltip everywhere. */
  #untitle() {
    const title = this.root.querySelector('title');
    this.root.removeAttribute('aria-labelledby');
    this.root.setAttribute('aria-label', title.textContent);
    title.remove();
  }

  // --- state ---------------------------------------------------------------------------------

  /** Reads the state from the address; invalid values are ignored. */
  restore() {
    const kept = new URLSearchParams(location.hash.slice(1)), get = (name) => kept.get(this.key + name);
    const id = (name) => (this.tree.nodes[Number(get(name) ?? -1)] ? Number(get(name)) : -1);
    const view = ['focus', 'callers'].includes(get('view')) && id('of') >= 0 ? get('view') : '';
    this.state = {
      view, of: view ? id('of') : -1, zoom: id('zoom'), find: get('find') || '',
      exact: get('case') === '1', up: get('order') === 'flame',
      ...Object.fromEntries(FILTERS.map((name) => [name, get(name) === '1'])),
    };
    this.field.value = this.state.find;
    this.show();
    this.toRoot();
  }

  /** Changes the state, stores it in the address (as a new history entry by default) and draws. */
  go(change, entry = true) {
    this.state = { ...this.state, ...change };
    const { view, of, zoom, find, exact, up } = this.state;
    const values = {
      ...Object.fromEntries(FILTERS.map((name) => [name, this.state[name] ? 1 : ''])),
      view, of: view ? of : '', zoom: zoom < 0 ? '' : zoom, find, case: exact ? 1 : '',
      order: up ? 'flame' : '',
    };
    const kept = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of Object.entries(values)) {
      if (value === '') kept.delete(this.key + name);
      else kept.set(this.key + name, value);
    }
    try {
      history[entry ? 'pushState' : 'replaceState'](null, '', `#${kept}`);
    } catch {
      // a sandboxed page has no address: the state is not stored
    }
    this.show();
  }

  reset() {
    this.field.value = '';
    this.go({ ...START, up: this.state.up });
    this.select(this.tree.root);
  }

  // --- drawing -------------------------------------------------------------------------------

  show() {
    const { of, up } = this.state;
    this.#filter();
    const view = this.#present(of) ? this.state.view : '';
    if (this.tree.root) {
      const scene = view === 'callers' ? this.#callers(of) : this.#whole(view === 'focus' ? of : -1);
      this.stage.draw(scene.nodes, scene.rows, up);
      this.zoomed = scene.zoomed;
      this.#crumbs();
      const { drawn } = this.stage, { id } = this.selected;
      if (!drawn.includes(this.selected)) {
        this.selected = drawn.find((node) => node.id === id) || scene.zoomed;
      }
      this.#tabStop(this.selected);
    }
    this.search();
    this.buttons.up.setAttribute('aria-pressed', up);
    this.buttons.exact.setAttribute('aria-pressed', this.state.exact);
    this.buttons.focus.setAttribute('aria-pressed', view === 'focus');
    this.buttons.callers.setAttribute('aria-pressed', view === 'callers');
    for (const name of FILTERS) this.buttons[name].setAttribute('aria-pressed', this.state[name]);
    this.fit();
  }

  #whole(of) {
    const root = of < 0 ? this.shown.root : this.#derived('focus', of);
    const zoomed = walk(root).find((node) => node.id === this.state.zoom) || root;
    root.rows ||= deepest(place(root, root)) + 1; // kept while zoomed, so that nothing jumps
    return { nodes: place(root, zoomed), rows: root.rows, zoomed };
  }

  /** One function in the middle, its callers above and its callees below. */
  #callers(of) {
    const { up, down } = this.#derived('callers', of);
    const [above, below] = this.tree.data.inverted ? [down, up] : [up, down];
    const callers = place(above, above).slice(1), callees = place(below, below);
    const middle = deepest(callers);
    for (const node of callers) node.row = middle - node.row;
    for (const node of callees) node.row += middle;
    return { nodes: callers.concat(callees), rows: deepest(callees) + 1, zoomed: below };
  }

  /** Leaves out what the buttons hide. */
  #filter() {
    const key = FILTERS.map((name) => this.state[name]).join();
    if (key === this.filters) return;
    this.filters = key;
    this.trees.clear();
    this.shown = FILTERS.some((name) => this.state[name]) ? filtered(this.tree, this.state) : this.tree;
  }

  /** Whether the function of a box is among those that are not hidden. */
  #present(of) {
    const name = of < 0 ? '' : functionOf(this.tree.nodes[of]);
    return this.shown.nodes.some((node) => functionOf(node) === name);
  }

  #derived(view, of) {
    const name = functionOf(this.tree.nodes[of]), key = `${view} ${name}`;
    if (!this.trees.has(key)) {
      const derive = view === 'focus' ? throughOnly : aroundFunction;
      this.trees.clear(); // one at a time: trees are large
      this.trees.set(key, derive(this.shown.nodes, (node) => functionOf(node) === name));
    }
    return this.trees.get(key);
  }

  /** Highlights matches; shows their share of all samples, each counted once. */
  search() {
    const { find, exact } = this.state;
    let pattern = null, message = '';
    try {
      pattern = find ? new RegExp(find, exact ? 'u' : 'iu') : null;
    } catch (error) {
      message = `not a regular expression: ${error.message.split(': ').at(-1)}`;
    }
    const test = (node) => pattern.test(`${node.name} ${node.place}`);
    this.field.setAttribute('aria-invalid', Boolean(message));
    if (pattern && this.tree.root) {
      const total = outermost(this.shown.nodes, test).matches.reduce((sum, { total }) => sum + total, 0);
      message = `${share(total, this.shown.root.total)} of all matched`;
    }
    this.matched.textContent = message;
    this.stage.tint(pattern ? test : null);
  }

  /** Lines of a tooltip: name, place, weights. */
  describe(node) {
    const { data } = this.tree, { root } = this.shown, derived = this.state.view === 'callers';
    const parts = [weight(node.total, data), `${share(node.total, root.total)} of all`];
    if (derived) parts.push(`${share(node.total, this.zoomed.total)} of ${this.zoomed.name}`);
    else if (node.parent) parts.push(`${share(node.total, node.parent.total)} of parent`);
    parts.push(`self ${weight(node.self, data)} (${share(node.self, root.total)})`);
    const lines = [node.name, node.place, parts.join(', ')];
    if (data.changes) {
      const more = 100 * (node.total - node.base) / root.total;
      const points = `${more < 0 ? '\u2212' : '+'}${Math.abs(more).toFixed(1)} points`;
      lines.push(`base ${share(node.base, root.total)} of all, now ${points}`);
    }
    return lines.filter(Boolean);
  }

  // --- the header ----------------------------------------------------------------------------

  #head() {
    const text = (name) => this.root.querySelector(`.head .${name}`).textContent;
    const button = (label, title, act) => {
      const element = html('button', { type: 'button', title }, label);
      element.addEventListener('click', act);
      return element;
    };
    this.field = html('input', {
      type: 'search', placeholder: 'Search (regex)', 'aria-label': 'Search frames by a regular expression',
      autocomplete: 'off', spellcheck: 'false',
    });
    this.matched = html('output', { class: 'matched', 'aria-live': 'polite' });
    this.buttons = {
      exact: button('Aa', 'Match case', () => this.go({ exact: !this.state.exact })),
      focus: button('Focus', 'Only stacks through the selected frame (f)', () => this.around('focus')),
      callers: button('Callers', 'Callers and callees of the selected frame (c)', () => this.around('callers')),
      up: button('Roots at bottom', 'Draw callers below their callees (i)', () => this.turn()),
      reset: button('Reset', 'Show everything: no zoom, no search, nothing hidden (0)', () => this.reset()),
    };
    const titles = {
      imports: ['Hide imports', 'Leave out imports of modules'],
      libraries: ['Hide library code', 'Add the time of libraries to the own function that calls them'],
      onlyOwn: ['Own code only', 'Only stacks through own code, and only its functions'],
    };
    for (const [name, [label, title]] of Object.entries(titles)) {
      this.buttons[name] = button(label, title, () => this.go({ [name]: !this.state[name], zoom: -1 }));
    }
    const { exact, focus, callers, reset, imports, libraries, onlyOwn } = this.buttons;
    const { nodes, data } = this.tree, ownCode = nodes.some((node) => node.ownCode) && !data.inverted;
    imports.hidden = !nodes.some((node) => node.imports);
    libraries.hidden = onlyOwn.hidden = !ownCode || nodes.every((node) => node.ownCode);
    this.path = html('nav', { class: 'path', 'aria-label': 'Path to the zoomed frame' });
    this.status = html('p', { class: 'status', 'aria-live': 'polite' }, HINT);
    this.bar = html('div', { class: 'bar' },
      html('h2', {}, text('title')),
      html('p', { class: 'soft' }, text('subtitle')),
      html('p', { class: 'keys' }, ...this.#keys()),
      html('div', { class: 'tools', role: 'toolbar', 'aria-label': 'Flamegraph' },
        html('span', { class: 'find' }, this.field, exact), this.matched,
        focus, callers, imports, libraries, onlyOwn, this.buttons.up, reset),
      this.path, this.status);
    this.head = svg('foreignObject', { class: 'controls', width: '100%', height: 1 }, this.bar);
    this.tip = html('div', { class: 'tip' });
    this.overlay = svg('foreignObject', { class: 'over', width: 1, height: 1 }, this.tip);
    this.root.querySelector('.head').remove();
    this.root.append(this.head, this.overlay);
  }

  #keys() {
    return Array.from(this.root.querySelectorAll('.key'), (key) => {
      const swatch = svg('svg', { width: 13, height: 12, 'aria-hidden': 'true' },
        svg('rect', { width: 13, height: 12, fill: key.querySelector('rect').getAttribute('fill') }));
      return html('span', { class: key.textContent ? 'named' : 'step' }, swatch, key.textContent);
    });
  }

  /** The path from the root to the zoomed box, or the function of the view. */
  #crumbs() {
    const { view, of } = this.state, crumbs = [];
    const crumb = (label, act) => {
      const element = html('button', { type: 'button' }, label);
      element.addEventListener('click', act);
      crumbs.push(element);
    };
    if (view) {
      const name = this.tree.nodes[of].name;
      crumb('all stacks', () => this.go({ view: '', zoom: -1 }));
      crumbs.push(html('b', {}, view === 'focus' ? `through ${name}` : `callers and callees of ${name}`));
    }
    const path = [];
    for (let node = this.zoomed; view !== 'callers' && node; node = node.parent) path.unshift(node);
    const last = path.pop();
    for (const node of path) crumb(node.name, () => this.zoom(node));
    if (last && (!view || path.length)) crumbs.push(html('b', { 'aria-current': 'true' }, last.name));
    this.path.replaceChildren(...crumbs);
    this.path.scrollLeft = this.path.scrollWidth;
  }

  /** Positions header, drawing and footer; the header stays visible. */
  fit() {
    const header = Math.ceil(this.bar.getBoundingClientRect().height);
    const stage = Number(this.stage.stage.getAttribute('height'));
    const foot = this.root.querySelector('.foot');
    set(this.head, 'height', String(header));
    set(this.stage.stage, 'y', String(header));
    if (foot) foot.setAttribute('y', header + stage);
    const below = foot ? Number(foot.getAttribute('height')) : 8;
    const whole = this.root === document.documentElement ? innerHeight : 0;
    set(this.root, 'height', String(Math.max(header + stage + below, whole)));
    this.#follow();
  }

  #follow() {
    const top = this.root.getBoundingClientRect().top;
    set(this.head, 'y', String(Math.max(0, -top)));
  }

  // --- pointer and keys ----------------------------------------------------------------------

  #listen() {
    const boxes = this.stage.boxes, node = (event) => this.stage.nodeOf.get(event.target);
    boxes.addEventListener('click', (event) => node(event) && this.enter(node(event)));
    boxes.addEventListener('dblclick', (event) => event.preventDefault());
    boxes.addEventListener('pointermove', (event) => node(event) && this.#showTip(node(event), event));
    boxes.addEventListener('pointerleave', () => this.#showTip(null));
    boxes.addEventListener('focusin', (event) => {
      if (!node(event)) return;
      this.selected = node(event);
      this.stage.mark(this.selected);
      this.status.textContent = this.describe(this.selected).join(' \u00b7 ');
    });
    boxes.addEventListener('focusout', () => this.stage.mark(null));
    this.field.addEventListener('input', () => this.go({ find: this.field.value }, false));
    this.root.ownerDocument.addEventListener('keydown', (event) => this.#key(event));
    addEventListener('popstate', () => this.restore());
    addEventListener('scroll', () => this.#follow(), { passive: true });
    new ResizeObserver(() => {
      if (this.root.getBoundingClientRect().width === this.stage.width) this.fit();
      else this.show();
    }).observe(this.bar);
  }

  #key(event) {
    const inside = this.root === document.documentElement || this.root.contains(event.target);
    if (!inside || event.ctrlKey || event.metaKey || event.altKey || !this.tree.root) return;
    if (event.target === this.field) {
      if (event.key === 'Escape') this.reset();
      return;
    }
    const toRoot = this.state.up ? 1 : -1, onBox = this.stage.boxes.contains(event.target);
    const pressed = event.target.localName === 'button' && ['Enter', ' '].includes(event.key);
    const acts = {
      ArrowUp: () => this.step(toRoot), ArrowDown: () => this.step(-toRoot),
      ArrowLeft: () => this.step(-1, true), ArrowRight: () => this.step(1, true),
      Home: () => this.select(this.stage.drawn[0]), Enter: () => onBox && this.enter(this.selected),
      ' ': () => onBox && this.enter(this.selected), '/': () => this.field.focus(),
      0: () => this.reset(), Escape: () => this.reset(), i: () => this.turn(),
      f: () => this.around('focus'), c: () => this.around('callers'),
    };
    if (!Object.hasOwn(acts, event.key) || pressed) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Zooms into a box; in the view of callers, shows that function. */
  enter(node) {
    this.selected = node;
    if (this.state.view !== 'callers') this.zoom(node);
    else if (!node.hidden) this.go({ of: node.id });
    this.select(this.selected);
  }

  zoom(node) {
    const zoom = node.parent ? node.id : -1;
    if (zoom !== this.state.zoom) this.go({ zoom });
  }

  around(view) {
    if (!this.selected || this.selected.hidden) return;
    const off = this.state.view === view;
    this.go({ view: off ? '' : view, of: off ? -1 : this.selected.id, zoom: -1 });
  }

  turn() {
    this.go({ up: !this.state.up });
    this.toRoot();
  }

  /** Scrolls to the roots if they are below the window. */
  toRoot() {
    const below = this.stage.boxes.getBoundingClientRect().bottom - innerHeight;
    if (this.state.up && below > 0) scrollBy(0, below);
  }

  /** Moves the selection: towards the root (-1) or away from it (1), or along the row. */
  step(by, sideways = false) {
    const onBox = this.stage.boxes.contains(document.activeElement);
    this.select(onBox ? this.stage.neighbour(this.selected, by, sideways) : this.selected);
  }

  select(node) {
    if (!node || !node.el) return;
    this.#tabStop(node);
    node.el.focus({ preventScroll: true });
    const box = node.el.getBoundingClientRect(), covered = this.bar.getBoundingClientRect().bottom;
    if (box.top < covered) scrollBy(0, box.top - covered - ROW);
    else if (box.bottom > innerHeight) scrollBy(0, box.bottom - innerHeight + ROW);
  }

  #tabStop(node) {
    if (this.stop) this.stop.removeAttribute('tabindex');
    this.stop = node.el;
    this.stop.setAttribute('tabindex', 0);
  }

  /** Shows the tooltip next to the pointer, on the side with room. */
  #showTip(node, event) {
    this.tip.classList.toggle('visible', Boolean(node));
    if (!node) return;
    const [name, ...rest] = this.describe(node);
    this.tip.replaceChildren(html('b', {}, name), ...rest.map((line) => html('div', {}, line)));
    const frame = this.root.getBoundingClientRect(), tip = this.tip.getBoundingClientRect();
    const x = event.clientX + 14 + tip.width > innerWidth
      ? Math.max(4, event.clientX - tip.width - 10) : event.clientX + 14;
    const y = event.clientY + 18 + tip.height > innerHeight
      ? event.clientY - tip.height - 10 : event.clientY + 18;
    this.overlay.setAttribute('x', x - frame.left);
    this.overlay.setAttribute('y', y - frame.top);
  }
}

document.querySelectorAll('svg.flame').forEach((root, index) => new Viewer(root, index));
