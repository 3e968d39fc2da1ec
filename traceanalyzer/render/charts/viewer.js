// An interactive chart: picture, view, tooltip.

const KEYS = 'Drag to zoom, shift + drag to move, ctrl + wheel; double click to reset. Keys: + \u2212 0 \u2190 \u2192';
const CLOSEST = 4; // smallest span of a view on an axis of integers
const LEAST = 160; // smallest width of a picture in pixels

class Viewer extends Zoomable {
  constructor(root) {
    super();
    this.root = root;
    this.data = new Data(JSON.parse(root.querySelector('script').textContent));
    this.view = this.data.across;
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.hovered = null;
    this.#build();
    this.gestures = new Gestures(this, this.plot);
    root.classList.add('live');
    this.dark.addEventListener('change', () => this.show());
    addEventListener('beforeprint', () => this.show(false));
    addEventListener('afterprint', () => this.show());
    new ResizeObserver(() => {
      if (Math.abs(this.plot.clientWidth - this.width) >= 1) this.fit();
    }).observe(this.plot);
    this.fit();
  }

  #build() {
    const title = this.root.querySelector('figcaption').textContent;
    this.legend = new Legend(this.data, () => {
      this.hover(null);
      this.later();
    });
    this.whole = html('button', { type: 'button', class: 'whole', title: 'Show everything (0)' }, 'Reset zoom');
    this.whole.addEventListener('click', () => this.reset());
    this.picture = svg('svg', { 'aria-hidden': 'true' });
    this.ring = svg('path', { class: 'hovered' });
    this.brush = svg('rect', { class: 'brush', visibility: 'hidden' });
    this.plot = html('div', { class: 'plot', tabindex: '0', role: 'group', 'aria-label': `${title}. ${KEYS}` }, this.picture);
    this.tip = html('div', { class: 'tip', 'aria-hidden': 'true' });
    const hint = html('p', { class: 'hint soft', 'aria-hidden': 'true' }, KEYS);
    this.root.querySelector('.drawn').replaceChildren(...this.legend.parts, html('div', { class: 'stage' }, this.plot, this.whole), hint, this.tip);
  }

  // --- drawing -------------------------------------------------------------------------------

  /** Adapts to the available width and draws. */
  fit() {
    const { zoomed } = this;
    this.width = this.plot.clientWidth;
    this.data.spread(layout(this.data, Math.max(this.width, LEAST)).inner);
    if (!zoomed) this.view = this.data.across;
    this.show();
  }

  show(dark = this.dark.matches) {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const { data } = this, plan = layout(data, Math.max(this.width, LEAST));
    this.plan = plan;
    this.places = plan.tops.map((top) => new Places(data, this.view, plan.left, plan.inner, top, plan.height));
    const foot = footer(data, this.places[0], plan, this.zoomed), inks = this.#inks(dark);
    const parts = plan.heading && !data.y.names
      ? [svg('text', { class: 'label', x: 2, y: 12 }, cut(plan.heading, plan.width - 4))] : [];
    this.places.forEach((at, panel) => {
      parts.push(...frame(data, panel, at, plan, foot.lines), ...this.#marks(panel, at, inks));
    });
    this.picture.setAttribute('viewBox', `0 0 ${plan.width} ${foot.height}`);
    this.picture.replaceChildren(...parts, ...foot.parts, this.ring, this.brush);
    this.legend.paint(inks);
    this.whole.classList.toggle('visible', this.zoomed);
    this.#outline();
  }

  #inks(dark) {
    return this.data.colors.map(([, color]) => (dark ? onDark(color) : color));
  }

  /** The marks of a panel, clipped to it. */
  #marks(panel, at, inks) {
    const { data } = this, size = radius(data), over = data.mark === 'scatter' || data.mark === 'line' ? 6 : 0;
    const shapes = paths(data, panel, at).map(({ color, kind, d }) => {
      const stroke = kind === 'bars' || kind === 'spots' ? { fill: inks[color] } : { stroke: inks[color] };
      const wide = kind === 'dots' ? { 'stroke-width': 2 * size } : {};
      return svg('path', { class: `marks ${kind}`, 'data-color': color, d, ...stroke, ...wide });
    });
    const rings = data.inPanel[panel].filter((row) => data.rings.has(row) && data.isVisible(row) && at.covers(data.x0[row], data.x1[row]));
    if (rings.length) shapes.push(svg('path', { class: 'ringed', d: rings.map((row) => outline(data, row, at, 2.4)).join('') }));
    const box = [this.plan.left - over, at.top - over, this.plan.inner + 2 * over, at.height + 2 * over];
    const [x, y, width, height] = box;
    const clip = svg('svg', { x, y, width, height, viewBox: box.join(' '), class: 'clip' }, ...references(data, at), ...shapes);
    clip.style.height = `${height}px`; // overrides the style of the page
    return [clip, ...lengths(data, panel, at)];
  }

  #outline() {
    const { hovered } = this;
    this.ring.setAttribute('d', hovered === null ? '' : outline(this.data, hovered, this.places[this.data.panelOf[hovered]], 3));
  }

  // --- the view ------------------------------------------------------------------------------

  get range() {
    return this.data.across;
  }

  /** The smallest interval shown. */
  get least() {
    const [start, end] = this.range, { names, whole } = this.data.x;
    return names ? 1 : whole && !this.data.logX ? CLOSEST : (end - start) * 1e-6;
  }

  /** Highlights the interval selected by a drag. */
  select(one, other) {
    const at = this.places[0], right = this.plan.left + this.plan.inner, top = this.plan.tops[0];
    const [from, to] = [one, other].sort((a, b) => a - b).map((value) => clamp(at.x(value), this.plan.left, right));
    fill(this.brush, { x: from, y: top, width: to - from, height: this.plan.foot - top, visibility: one === other ? 'hidden' : 'visible' }, []);
  }

  // --- the pointer ---------------------------------------------------------------------------

  /** The left edge of the plot on the screen; its width is that of pixels(). */
  left() {
    return this.plot.getBoundingClientRect().left + this.plan.left * this.#ratio();
  }

  pixels() {
    return this.plan.inner * this.#ratio();
  }

  /** Screen pixels per pixel of the picture; not 1 while the page is being resized. */
  #ratio() {
    return this.plot.getBoundingClientRect().width / this.plan.width || 1;
  }

  /** The position of a pointer: value on the axis, point in the picture, panel. */
  locate(event) {
    const box = this.plot.getBoundingClientRect(), ratio = this.#ratio(), { plan } = this;
    const x = (event.clientX - box.left) / ratio, y = (event.clientY - box.top) / ratio;
    const panel = plan.tops.findIndex((top) => y >= top - 8 && y <= top + plan.height + 4);
    const value = this.view[0] + (x - plan.left) / plan.inner * (this.view[1] - this.view[0]);
    const inside = panel >= 0 && x >= plan.left - 6 && x <= plan.left + plan.inner + 6;
    return { x, y, panel, value, inside };
  }

  /** Shows the tooltip of the mark under the pointer. */
  hover(event) {
    const { x, y, panel, inside } = event ? this.locate(event) : {};
    this.hovered = inside ? nearest(this.data, panel, this.places[panel], x, y) : null;
    this.#outline();
    this.tip.classList.toggle('visible', this.hovered !== null);
    if (this.hovered !== null) this.#showTip(event);
  }

  #showTip(event) {
    this.tip.replaceChildren(facts(this.data.describe(this.hovered, this.view[1] - this.view[0])));
    placeTip(this.tip, event);
  }
}

for (const root of document.querySelectorAll('figure.chart')) {
  if (root.querySelector('script')) root.viewer = new Viewer(root);
}
