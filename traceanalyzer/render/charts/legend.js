// The legend; a click on a category shows or hides it.

const ROOM = 280; // pixels of a name

class Legend {
  constructor(data, changed) {
    this.data = data;
    this.buttons = data.group ? data.colors.map(([name], color) => {
      const button = html('button', { type: 'button', 'aria-pressed': 'true', title: `${name}: show or hide` },
        swatch(svg('rect', { width: 12, height: 12, rx: 2.5 })), html('span', {}, cut(name, ROOM)));
      button.addEventListener('click', () => {
        data.toggle(color);
        button.setAttribute('aria-pressed', !data.hidden.has(color));
        changed();
      });
      return button;
    }) : [];
    const ring = data.ring ? [html('span', { class: 'key' }, swatch(svg('circle', { cx: 6, cy: 6, r: 4.6 })), data.ring)] : [];
    const symbols = data.symbols.map((name, kind) => html('span', { class: 'key symbol' }, swatch(svg('path', { d: symbol(kind, 6, 6, 4) })), name));
    const entries = [...this.buttons, ...symbols, ...ring];
    const title = this.buttons.length ? [html('span', { class: 'soft' }, data.group)] : [];
    this.parts = entries.length ? [html('div', { class: 'keys', role: 'group', 'aria-label': 'Legend' }, ...title, ...entries)] : [];
  }

  paint(inks) {
    this.buttons.forEach((button, color) => button.querySelector('rect').setAttribute('fill', inks[color]));
  }
}

const swatch = (shape) => svg('svg', { width: 12, height: 12, viewBox: '0 0 12 12', 'aria-hidden': 'true' }, shape);
