// The data as typed arrays, and positions in the stack. Nothing is drawn here.
// A level is a step of the curves; a box is live at a level if the event of the level is in its
// lifetime. Boxes are stacked in the order of their indices, the rest on top of them.

/** Decodes values from differences; unknown ones become NaN. */
function summed(differences) {
  const values = new Float64Array(differences.length);
  let last = 0;
  differences.forEach((difference, at) => {
    if (difference === null) values[at] = NaN;
    else values[at] = last += difference;
  });
  return values;
}

/** The first index in sorted values that is not below a value. */
function bisect(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Memory {
  constructor(data) {
    const { boxes, levels } = data;
    this.data = data;
    this.count = boxes.size.length;
    this.size = Float64Array.from(boxes.size);
    this.start = summed(boxes.start);
    this.end = this.start.map((start, box) => start + boxes.length[box]);
    this.startTime = summed(boxes.startTime);
    this.endTime = summed(boxes.endTime);
    this.fill = Uint8Array.from(boxes.fill);
    this.event = summed(levels.event);
    this.time = summed(levels.time);
    this.live = summed(levels.live);
    this.rest = summed(levels.rest);
    this.reserved = summed(levels.reserved);
    this.first = Int32Array.from(this.start, (start) => bisect(this.event, start));
    this.ends = Int32Array.from(this.end, (end) => bisect(this.event, end));
    this.sent = this.rest;
    this.largest = this.size.reduce((most, size) => Math.max(most, size), 0);
    this.keep(0);
    this.top = this.live.reduce((most, live, level) => Math.max(most, live, this.reserved[level] || 0), 0);
    this.peak = Math.max(bisect(this.event, data.peak + 1) - 1, 0);
    this.stackEnds = new Map(data.ends[0].map((stack, at) => [stack, data.ends[1][at]]));
    this.#callers(data);
  }

  #callers({ above, frames }) {
    this.above = Int32Array.from(above, (distance, node) => (distance ? node - distance : -1));
    this.frames = frames;
  }

  /** Draws only boxes of a size or more; smaller ones belong to the rest and have no levels. */
  keep(least) {
    const change = new Float64Array(this.event.length + 1);
    this.least = least;
    this.kept = 0;
    this.last = this.ends.map((end, box) => {
      if (this.size[box] >= least) {
        this.kept++;
        return end;
      }
      change[this.first[box]] += this.size[box];
      change[end] -= this.size[box];
      return this.first[box];
    });
    let smaller = 0;
    this.rest = this.sent.map((rest, level) => rest + (smaller += change[level]));
  }

  get timed() {
    return this.data.span !== null;
  }

  /** The start of each level on the axis, and the end of the axis. */
  axis(timed) {
    return timed ? [this.time, this.data.span] : [this.event, Math.max(this.data.events, 1)];
  }

  text(number) {
    return number < 0 ? '' : this.data.texts[number];
  }

  /** The frames of a stack, the innermost first. */
  stack(number) {
    const frames = [];
    for (let node = this.stackEnds.get(number) ?? -1; node >= 0; node = this.above[node]) {
      frames.push(this.text(this.frames[node]));
    }
    return frames;
  }

  /** The live boxes at a level, from the bottom; faster with those of an earlier level. */
  liveAt(level, earlier = null, since = -1) {
    const boxes = [];
    if (earlier && since <= level) {
      for (const box of earlier) if (this.last[box] > level) boxes.push(box);
    }
    const known = earlier && since <= level ? bisect(this.first, since + 1) : 0;
    for (let box = known; box < this.count && this.first[box] <= level; box++) {
      if (this.last[box] > level) boxes.push(box);
    }
    return boxes;
  }

  /** The stack at a level: each box with its lower and upper edge in bytes, -1 for the rest. */
  stackAt(level) {
    let base = 0;
    const stack = this.liveAt(level).map((box) => [box, base, base += this.size[box]]);
    if (this.rest[level] > 0) stack.push([-1, base, base + this.rest[level]]);
    return stack;
  }

  /** The box at a height in bytes; null above the stack. */
  at(level, height) {
    const hit = level >= 0 && height >= 0 && this.stackAt(level).find(([, , top]) => height < top);
    return hit ? hit[0] : null;
  }

  /** The lower edge of a box at every level of its life. */
  bottoms(box) {
    const from = this.first[box], bottom = new Float64Array(Math.max(this.last[box] - from, 0));
    for (let below = 0; below < box; below++) {
      if (this.last[below] <= from) continue;
      const until = Math.min(this.last[below] - from, bottom.length);
      bottom[0] += this.size[below];
      if (until < bottom.length) bottom[until] -= this.size[below];
    }
    for (let at = 1; at < bottom.length; at++) bottom[at] += bottom[at - 1];
    return bottom;
  }

  /** Boxes and blocks with a text in their frames, label or category. */
  find(text) {
    const wanted = text.toLowerCase();
    const texts = this.data.texts.map((one) => one.toLowerCase().includes(wanted));
    const nodes = new Uint8Array(this.frames.length);
    nodes.forEach((_, node) => {
      nodes[node] = texts[this.frames[node]] || (this.above[node] >= 0 && nodes[this.above[node]]);
    });
    const hit = ({ stack, label, category }) => label.map((number, at) => Boolean(
      texts[number] || nodes[this.stackEnds.get(stack[at])] || (category && texts[category[at]]),
    ));
    const boxes = hit(this.data.boxes).map((one, box) => one && this.size[box] >= this.least);
    const atPeak = this.liveAt(this.peak).filter((box) => boxes[box]);
    return {
      boxes, blocks: hit(this.data.blocks), count: boxes.filter(Boolean).length,
      bytes: atPeak.reduce((sum, box) => sum + this.size[box], 0),
    };
  }

  /** The level of each column: the one with the most live bytes; -1 before the first. */
  columns([from, to], width, timed) {
    const [x] = this.axis(timed), levels = new Int32Array(width);
    const edge = (column) => from + (to - from) * column / width;
    let next = bisect(x, from);
    for (let column = 0; column < width; column++) {
      let best = x[next] === edge(column) ? next : next - 1;
      const end = column === width - 1 ? to : edge(column + 1);
      for (; next < x.length && (x[next] < end || (column === width - 1 && x[next] === to)); next++) {
        if (best < 0 || this.live[next] > this.live[best]) best = next;
      }
      levels[column] = best;
    }
    return levels;
  }
}
