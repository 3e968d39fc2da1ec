// A view of an axis that zooms and moves, and the touch, mouse and key gestures for it.

/** The visible interval of an axis; a viewer has `range` and `least`, and draws in `later`. */
class Zoomable {
  get zoomed() {
    const [from, to] = this.range;
    return this.view[1] - this.view[0] < (to - from) * (1 - 1e-9);
  }

  /** Shows an interval of the axis, limited to its range. */
  look(from, to) {
    const [start, end] = this.range, most = end - start;
    const wide = clamp(to - from, Math.min(this.least, most), most);
    const low = clamp((from + to - wide) / 2, start, end - wide);
    this.view = wide === most ? this.range : [low, low + wide];
    this.hover(null);
    this.later();
  }

  /** Zooms by a factor around a position, by default the middle. */
  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    const at = clamp(around, ...this.view);
    this.look(at + (this.view[0] - at) * factor, at + (this.view[1] - at) * factor);
  }

  /** Moves a view by a share of its width. */
  pan(view, share) {
    const by = (view[1] - view[0]) * share, [start, end] = this.range;
    const kept = clamp(by, start - view[0], end - view[1]);
    this.look(view[0] + kept, view[1] + kept);
  }

  reset() {
    this.look(...this.range);
  }

  /** Draws with the next frame, once. */
  later() {
    this.waiting ||= requestAnimationFrame(() => this.show());
  }
}

const MOVED = 4; // pixels that turn a click into a drag

/** Turns events of the plot into actions of the viewer. */
class Gestures {
  constructor(viewer, plot) {
    this.viewer = viewer;
    this.plot = plot;
    this.drag = null;
    this.touches = new Map();
    const on = (name, act, how) => plot.addEventListener(name, (event) => act.call(this, event), how);
    on('pointerdown', this.#press);
    on('pointermove', this.#move);
    on('pointerup', this.#release);
    on('pointercancel', this.#drop);
    on('pointerleave', () => viewer.hover(null));
    on('dblclick', () => viewer.reset());
    on('wheel', this.#wheel, { passive: false });
    on('keydown', this.#key);
    on('blur', () => viewer.hover(null));
  }

  #press(event) {
    if (event.button) return;
    const { value, inside } = this.viewer.locate(event);
    if (!inside) return;
    this.plot.setPointerCapture?.(event.pointerId);
    const touched = event.pointerType === 'touch';
    if (touched) this.touches.set(event.pointerId, { x: event.clientX, value });
    this.drag = { x: event.clientX, value, pans: event.shiftKey || touched, view: this.viewer.view, moved: false };
  }

  #move(event) {
    const { drag, viewer } = this;
    if (this.touches.has(event.pointerId) && this.touches.size === 2) {
      this.touches.get(event.pointerId).x = event.clientX;
      this.#pinch();
    } else if (!drag) viewer.hover(event);
    else {
      drag.moved ||= Math.abs(event.clientX - drag.x) > MOVED;
      if (!drag.moved) return;
      viewer.hover(null);
      if (drag.pans) viewer.pan(drag.view, (drag.x - event.clientX) / viewer.pixels());
      else viewer.select(drag.value, viewer.locate(event).value);
    }
  }

  /** Keeps the values under both fingers where the fingers are. */
  #pinch() {
    const [one, other] = [...this.touches.values()].sort((a, b) => a.x - b.x), { viewer } = this;
    if (other.x - one.x < 8) return;
    const scale = Math.abs(other.value - one.value) / (other.x - one.x), low = Math.min(one.value, other.value);
    const from = low - (one.x - viewer.left()) * scale;
    viewer.look(from, from + scale * viewer.pixels());
  }

  #release(event) {
    const { drag, viewer } = this;
    this.#drop(event);
    if (drag?.moved && !drag.pans) {
      const { value } = viewer.locate(event);
      viewer.look(Math.min(drag.value, value), Math.max(drag.value, value));
    } else if (drag && !drag.moved) (viewer.click ?? viewer.hover).call(viewer, event);
  }

  #drop(event) {
    this.touches.delete(event.pointerId);
    this.drag = null;
    this.viewer.select(0, 0);
  }

  /** Zooms with Ctrl or when the plot has the focus; otherwise, and at full view, the page scrolls. */
  #wheel(event) {
    const { viewer } = this, forPlot = event.ctrlKey || event.metaKey || document.activeElement === this.plot;
    const across = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!forPlot || (event.deltaY > 0 && !viewer.zoomed && !event.ctrlKey)) return;
    event.preventDefault();
    if (across) viewer.pan(viewer.view, event.deltaX / viewer.pixels());
    else viewer.zoom(2 ** clamp(event.deltaY / 200, -1, 1), viewer.locate(event).value);
  }

  #key(event) {
    const { viewer } = this, step = event.shiftKey ? 0.5 : 0.1;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ArrowLeft: () => viewer.pan(viewer.view, -step), ArrowRight: () => viewer.pan(viewer.view, step),
      '+': () => viewer.zoom(0.5), '=': () => viewer.zoom(0.5), '-': () => viewer.zoom(2),
      0: () => viewer.reset(), Escape: () => viewer.reset(),
      ...(viewer.nextRow && { ArrowUp: () => viewer.nextRow(-1), ArrowDown: () => viewer.nextRow(1) }),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
