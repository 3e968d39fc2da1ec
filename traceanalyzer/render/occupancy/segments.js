// The reserved segments at the peak, to one scale, in rows.

const STRIP = 18, BETWEEN = 5, APART = 3, ROWS = 10;

class Segments {
  constructor(memory) {
    const { segments, blocks } = memory.data;
    this.memory = memory;
    this.blocks = { ...blocks, segment: summed(blocks.segment), offset: summed(blocks.offset) };
    this.count = segments.size.length;
    this.from = Int32Array.from(segments.size, (_, segment) => bisect(this.blocks.segment, segment));
    this.free = new Float64Array(this.count);
    this.blocks.size.forEach((size, block) => {
      if (!blocks.live[block]) this.free[this.blocks.segment[block]] += size;
    });
    this.found = null;
    this.canvas = html('canvas', { role: 'img', 'aria-label': `Segments at the peak: ${this.summary()}` });
  }

  /** A summary of all segments. */
  summary() {
    const [count, total, live, holes, largest] = this.memory.data.segments.all;
    const more = count > this.count ? ` The ${GROUPED.format(this.count)} largest are drawn.` : '';
    const free = total - live;
    return `${GROUPED.format(count)} segment${count === 1 ? '' : 's'} of ${bytes(total)}: ${bytes(live)} live, `
      + `${bytes(free)} free (${percent(free, total)}) in ${GROUPED.format(holes)} hole${holes === 1 ? '' : 's'}, the largest ${bytes(largest)}.${more}`;
  }

  /** Divides segments into pieces per row: largest first, or those with most free bytes. */
  #lay(fragmented) {
    const weight = fragmented ? this.free : this.memory.data.segments.size;
    const order = Array.from({ length: this.count }, (_, segment) => segment);
    order.sort((one, two) => weight[two] - weight[one] || one - two);
    const total = this.memory.data.segments.size.reduce((sum, size) => sum + size, 0);
    const room = this.width * Math.min(ROWS, 2 + this.count) - 2 * APART * this.count;
    this.each = Math.max(total / Math.max(room, this.width), 1);
    this.pieces = [];
    let x = 0, row = 0;
    for (const segment of order) {
      const size = this.memory.data.segments.size[segment];
      for (let done = 0; done < size;) {
        if (this.width - x < 2) [x, row] = [0, row + 1];
        const wide = clamp((size - done) / this.each, 2, this.width - x);
        const until = Math.min(size, done + wide * this.each);
        this.pieces.push({ segment, from: done, until, x, row, wide });
        done = until;
        x += wide;
      }
      x += APART;
    }
    this.rows = row + 1;
  }

  draw(width, fragmented, dark, found) {
    this.width = Math.max(Math.floor(width), 50);
    this.#lay(fragmented);
    const ratio = Math.min(devicePixelRatio || 1, 2), height = this.rows * (STRIP + BETWEEN);
    this.canvas.width = this.width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.aspectRatio = `${this.width} / ${height}`;
    const context = this.canvas.getContext('2d'), fills = this.memory.data.fills[dark ? 1 : 0];
    context.scale(ratio, ratio);
    for (const piece of this.pieces) {
      const y = piece.row * (STRIP + BETWEEN);
      context.fillStyle = fills[this.memory.data.grey];
      context.fillRect(piece.x, y, piece.wide, STRIP);
      for (let block = this.#block(piece.segment, piece.from); this.blocks.segment[block] === piece.segment; block++) {
        const start = this.blocks.offset[block], end = start + this.blocks.size[block];
        if (start >= piece.until) break;
        if (!this.blocks.live[block]) continue;
        const from = Math.max(start, piece.from), until = Math.min(end, piece.until);
        context.globalAlpha = found && !found[block] ? 0.3 : 1;
        context.fillStyle = fills[found && found[block] ? 4 : block % 3];
        context.fillRect(piece.x + (from - piece.from) / this.each, y, (until - from) / this.each, STRIP);
      }
      context.globalAlpha = 1;
    }
  }

  /** The block of a segment at an offset, else the next one. */
  #block(segment, offset) {
    let block = this.from[segment];
    while (this.blocks.segment[block] === segment
      && this.blocks.offset[block] + this.blocks.size[block] <= offset) block++;
    return block;
  }

  /** The segment and the block under a pointer; the block is -1 where there is none. */
  locate(event) {
    const box = this.canvas.getBoundingClientRect(), scale = this.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const row = Math.floor(y / (STRIP + BETWEEN));
    const piece = this.pieces.find((one) => one.row === row && x >= one.x && x < one.x + one.wide);
    if (!piece) return null;
    const offset = piece.from + (x - piece.x) * this.each, block = this.#block(piece.segment, offset);
    const inside = this.blocks.segment[block] === piece.segment && this.blocks.offset[block] <= offset;
    return { segment: piece.segment, block: inside ? block : -1 };
  }

  /** Title, facts and frames of a segment or block. */
  describe({ segment, block }) {
    const { segments } = this.memory.data, total = segments.size[segment];
    const live = block >= 0 && this.blocks.live[block];
    const facts = [
      ['segment', [segments.address[segment], this.memory.text(segments.label[segment])].filter(Boolean).join(', ')],
      ['free', `${bytes(this.free[segment])} of ${bytes(total)} (${percent(this.free[segment], total)})`],
    ];
    if (block < 0) return { title: `${bytes(total)} segment`, facts, frames: [] };
    facts.unshift(['code', this.memory.text(this.blocks.label[block])]);
    return {
      title: `${bytes(this.blocks.size[block])} ${live ? 'live' : 'free'}`,
      facts, frames: this.memory.stack(this.blocks.stack[block]),
    };
  }
}
