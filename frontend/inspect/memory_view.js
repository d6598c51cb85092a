'use strict';
// The memory of a plan over a step, drawn from the data that plan_data.cpp writes into the page: the live bytes, and
// below them the place of every value. Both have a column per instruction. A click shows what is alive there, and a
// value's line in the model and the reason for its place. Everything that comes from a model goes into the page as
// text, never as HTML.

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Three digits, in powers of 1024.
function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) bytes /= 1024, ++unit;
  return (unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toPrecision(3).replace(/\.?0+$/, '')) + ' ' + units[unit];
}

function timeText(us) {
  if (us === 0) return '0';
  if (us < 1000) return us.toPrecision(3) + ' us';
  return us < 1e6 ? (us / 1e3).toPrecision(3) + ' ms' : (us / 1e6).toPrecision(3) + ' s';
}

const color = name => getComputedStyle(document.documentElement).getPropertyValue(name);

// Gives the canvas as many pixels as the screen has for it. Drawing is in CSS pixels.
function contextOf(canvas) {
  const scale = window.devicePixelRatio || 1, {clientWidth: width, clientHeight: height} = canvas;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return {context, width, height};
}

// A power of two that divides the range into three to six steps: labels are round in GiB.
const byteStep = range => 2 ** Math.ceil(Math.log2(Math.max(range, 1) / 6));

const leftMargin = 66;

class MemoryView {
  constructor(root, plan) {
    this.plan = plan;
    this.root = root;
    this.linked = [];
    this.bases = [];
    this.columns = 0;
    for (const {ops} of plan.functions) this.bases.push(this.columns), this.columns += ops.length;
    this.values = plan.values.map(([name, type, category, offset, bytes, fn, first, end, drawn, origin, reason], id) => ({
      id, name, type, category, offset, bytes, fn, drawn: drawn === 1, origin: plan.origins[origin], reason,
      first: fn < 0 ? 0 : this.bases[fn] + first, end: fn < 0 ? this.columns : this.bases[fn] + end,
    }));
    this.drawn = this.values.filter(value => value.drawn);
    this.sumUp();
    this.top = plan.arena_bytes;
    this.build();
    this.reset();
    this.selectColumn(this.peak);
    new ResizeObserver(() => this.draw()).observe(this.curve);
  }

  // Live bytes by category and column.
  sumUp() {
    const {alignment, categories} = this.plan;
    this.live = categories.map(() => new Float64Array(this.columns + 1));
    for (const {category, bytes, first, end} of this.drawn) {
      const padded = Math.ceil(Math.max(bytes, 1) / alignment) * alignment;
      this.live[category][first] += padded;
      this.live[category][end] -= padded;
    }
    for (const sums of this.live) for (let i = 1; i < sums.length; ++i) sums[i] += sums[i - 1];
    this.peak = 0;
    for (let i = 0; i < this.columns; ++i) if (this.liveAt(i) > this.liveAt(this.peak)) this.peak = i;
  }
  liveAt(column) { return this.live.reduce((sum, each) => sum + each[column], 0); }

  build() {
    const name = `values of ${this.plan.title}`;
    this.search = element('input', {type: 'search', placeholder: 'find a value by name', ariaLabel: `find among the ${name}`});
    this.found = element('span', {className: 'quiet'});
    this.curve = element('canvas', {className: 'curve', tabIndex: 0, ariaLabel: `live bytes, ${name}`});
    this.map = element('canvas', {className: 'map', tabIndex: 0, ariaLabel: `places of the ${name}`});
    this.tip = element('div', {className: 'tip', hidden: true});
    this.alive = element('div', {className: 'pane alive'});
    this.details = element('div', {className: 'pane value'});
    const zoom = (text, label, act) => element('button', {textContent: text, title: label, ariaLabel: label, onclick: act});
    const tools = element('div', {className: 'tools'}, this.search, this.found,
      zoom('+', 'zoom in', () => this.zoomBy(0.6)), zoom('−', 'zoom out', () => this.zoomBy(1 / 0.6)),
      zoom('all', 'show everything', () => { this.reset(); this.draw(); }));
    this.root.append(tools, this.curve, this.map, this.tip, element('div', {className: 'panes'}, this.alive, this.details));
    this.search.oninput = () => this.find(this.search.value);
    this.search.onkeydown = event => { if (event.key === 'Enter') this.goToMatch(event.shiftKey ? -1 : 1); };
    for (const canvas of [this.curve, this.map]) this.listen(canvas);
  }

  listen(canvas) {
    const pointers = new Map();
    let moved = false;
    canvas.onpointerdown = event => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
      moved = false;
    };
    canvas.onpointermove = event => {
      const before = pointers.get(event.pointerId);
      if (!before) return this.hover(canvas, event);
      if (Math.abs(event.offsetX - before.offsetX) + Math.abs(event.offsetY - before.offsetY) < 3) return;
      moved = true;
      const [other] = [...pointers.values()].filter(each => each.pointerId !== event.pointerId);
      if (other)
        this.zoomBy(Math.abs(before.offsetX - other.offsetX + 1) / Math.abs(event.offsetX - other.offsetX + 1), this.columnAt(other.offsetX), null);
      else
        this.pan(before.offsetX - event.offsetX, canvas === this.map ? event.offsetY - before.offsetY : 0);
      pointers.set(event.pointerId, event);
    };
    canvas.onpointerup = event => {
      if (pointers.delete(event.pointerId) && !moved) this.click(canvas, event);
    };
    canvas.onpointercancel = event => pointers.delete(event.pointerId);
    canvas.onpointerleave = () => { this.tip.hidden = true; };
    canvas.ondblclick = () => { this.reset(); this.draw(); };
    // The wheel scrolls the page until the drawing was clicked.
    canvas.onwheel = event => {
      if (document.activeElement !== canvas) return;
      event.preventDefault();
      const bytes = event.shiftKey || canvas === this.curve ? null : this.bytesAt(event.offsetY);
      this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, this.columnAt(event.offsetX), bytes);
    };
    canvas.onkeydown = event => {
      const width = this.x1 - this.x0;
      const act = {'+': () => this.zoomBy(0.6), '-': () => this.zoomBy(1 / 0.6), 0: () => this.reset(), Escape: () => this.reset(),
        ArrowLeft: () => this.selectColumn(this.column - 1), ArrowRight: () => this.selectColumn(this.column + 1),
        PageUp: () => this.shift(-width / 2), PageDown: () => this.shift(width / 2)}[event.key];
      if (!act) return;
      event.preventDefault();
      act();
      this.draw();
    };
  }

  // What is shown: columns [x0, x1), bytes [y0, y1).
  reset() {
    [this.x0, this.x1, this.y0, this.y1] = [0, Math.max(this.columns, 1), 0, this.top];
  }
  shift(columns) {
    const by = Math.min(Math.max(columns, -this.x0), this.columns - this.x1);
    this.x0 += by;
    this.x1 += by;
  }
  pan(pixels, pixelsUp) {
    this.shift(pixels / this.plotWidth() * (this.x1 - this.x0));
    const bytes = Math.min(Math.max(pixelsUp / this.map.clientHeight * (this.y1 - this.y0), -this.y0), this.top - this.y1);
    this.y0 += bytes;
    this.y1 += bytes;
    this.draw();
  }
  zoomBy(factor, column = (this.x0 + this.x1) / 2, bytes = (this.y0 + this.y1) / 2) {
    const scaled = (low, high, at, least, most) => {
      const size = Math.min(Math.max((high - low) * factor, Math.min(least, most)), most);
      const start = Math.min(Math.max(at - (at - low) * size / (high - low), 0), most - size);
      return [start, start + size];
    };
    [this.x0, this.x1] = scaled(this.x0, this.x1, column, 4, Math.max(this.columns, 1));
    if (bytes !== null) [this.y0, this.y1] = scaled(this.y0, this.y1, bytes, 1024, this.top);
    this.draw();
  }
  zoomTo({first, end, offset, bytes}) {
    const columns = Math.min(Math.max(3 * (end - first), 12), this.columns), height = Math.min(Math.max(6 * bytes, this.top / 50), this.top);
    this.x0 = Math.min(Math.max((first + end - columns) / 2, 0), this.columns - columns);
    this.y0 = Math.min(Math.max(offset + bytes / 2 - height / 2, 0), this.top - height);
    this.x1 = this.x0 + columns;
    this.y1 = this.y0 + height;
    this.draw();
  }

  plotWidth() { return Math.max(this.map.clientWidth - leftMargin, 1); }
  x(column) { return leftMargin + (column - this.x0) / (this.x1 - this.x0) * this.plotWidth(); }
  y(bytes) { return (1 - (bytes - this.y0) / (this.y1 - this.y0)) * this.map.clientHeight; }
  columnAt(x) { return this.x0 + (x - leftMargin) / this.plotWidth() * (this.x1 - this.x0); }
  bytesAt(y) { return this.y0 + (1 - y / this.map.clientHeight) * (this.y1 - this.y0); }
  valueAt(x, y) {
    const column = this.columnAt(x), bytes = this.bytesAt(y);
    return this.drawn.find(value => value.first <= column && column < value.end && value.offset <= bytes && bytes < value.offset + value.bytes);
  }

  draw() {
    this.drawCurve();
    this.drawMap();
  }

  drawBytesAxis(context, width, y, low, high) {
    const step = byteStep(high - low);
    context.textAlign = 'right';
    for (let bytes = Math.ceil(low / step) * step; bytes <= high; bytes += step) {
      const at = Math.min(Math.max(y(bytes), 7), context.canvas.clientHeight - 7);
      context.fillStyle = color('--quiet');
      context.fillText(bytesText(bytes), leftMargin - 6, at);
      context.fillStyle = color('--rule');
      context.fillRect(leftMargin, y(bytes), width - leftMargin, 1);
    }
  }

  drawCurve() {
    const {context, width, height} = contextOf(this.curve), foot = 18;
    const largest = Math.max(this.liveAt(this.peak), 1), top = Math.max(largest * 1.05, this.scale || 0);
    const y = bytes => (height - foot) * (1 - bytes / top);
    this.drawBytesAxis(context, width, y, 0, top);
    for (let x = leftMargin; x < width; ++x) {
      const first = Math.max(Math.floor(this.columnAt(x)), 0);
      const end = Math.min(Math.max(Math.floor(this.columnAt(x + 1)), first + 1), this.columns);
      let fullest = first;
      for (let i = first; i < end; ++i) if (this.liveAt(i) > this.liveAt(fullest)) fullest = i;
      let below = 0;
      this.live.forEach((sums, category) => {
        context.fillStyle = this.plan.colors[category];
        const next = below + sums[fullest];
        context.fillRect(x, y(next), 1, y(below) - y(next));
        below = next;
      });
    }
    this.drawPhases(context, height - foot / 2);
    this.drawCursor(context, height - foot);
  }

  drawPhases(context, y) {
    context.fillStyle = color('--quiet');
    context.textAlign = 'center';
    this.plan.phases.forEach(([start, label], i, all) => {
      const from = Math.max(this.x(start), leftMargin), to = Math.min(this.x(i + 1 < all.length ? all[i + 1][0] : this.columns), this.map.clientWidth);
      if (to - from > context.measureText(label).width + 8) context.fillText(label, (from + to) / 2, y);
      if (i > 0 && from > leftMargin) context.fillRect(from, y - 6, 1, 12);
    });
  }

  drawCursor(context, height) {
    const x = this.x(this.column + 0.5);
    if (x < leftMargin) return;
    context.fillStyle = color('--ink');
    context.fillRect(x - 0.5, 0, 1, height);
  }

  drawMap() {
    const {context, width, height} = contextOf(this.map);
    this.drawBytesAxis(context, width, bytes => this.y(bytes), this.y0, this.y1);
    context.save();
    context.beginPath();
    context.rect(leftMargin, 0, width - leftMargin, height);
    context.clip();
    context.textAlign = 'left';
    for (const value of this.drawn) {
      if (value.end <= this.x0 || value.first >= this.x1 || value.offset >= this.y1 || value.offset + value.bytes <= this.y0) continue;
      this.drawValue(context, value);
    }
    this.drawCursor(context, height);
    context.restore();
  }

  drawValue(context, value) {
    const left = Math.max(this.x(value.first), leftMargin), right = Math.min(this.x(value.end), this.map.clientWidth);
    const top = this.y(value.offset + value.bytes), bottom = this.y(value.offset), width = right - left, height = bottom - top;
    const isChosen = this.chosen && this.storage(this.chosen) === value;
    context.globalAlpha = this.matches && !this.matches.has(value) && !isChosen ? 0.15 : 1;
    context.fillStyle = this.plan.colors[value.category];
    context.fillRect(left, top, Math.max(width, 0.5), Math.max(height, 0.5));
    if (width > 3 && height > 3) {
      context.strokeStyle = color('--paper');
      context.lineWidth = 0.5;
      context.strokeRect(left, top, width, height);
    }
    if (isChosen) {
      context.strokeStyle = color('--ink');
      context.lineWidth = 2;
      context.strokeRect(left, top, Math.max(width, 2), Math.max(height, 2));
    }
    if (width > 50 && height > 13) {
      const letters = Math.floor((width - 8) / 7);
      context.fillStyle = '#fff';
      context.fillText(value.name.length > letters ? value.name.slice(0, letters - 1) + '…' : value.name, left + 4, (Math.max(top, 0) + Math.min(bottom, this.map.clientHeight)) / 2);
    }
    context.globalAlpha = 1;
  }

  // The drawn value whose bytes another one is a view of, or lies in.
  storage(value) {
    if (value.drawn) return value;
    return this.drawn.find(each => each.offset <= value.offset && value.offset + value.bytes <= each.offset + each.bytes && each.first <= value.first && value.first < each.end) || value;
  }

  hover(canvas, event) {
    const value = canvas === this.map && this.valueAt(event.offsetX, event.offsetY);
    const column = Math.floor(this.columnAt(event.offsetX));
    this.tip.hidden = column < 0 || column >= this.columns || (canvas === this.map && !value);
    if (this.tip.hidden) return;
    this.tip.textContent = value ? `${value.name}, ${bytesText(value.bytes)} of ${this.plan.categories[value.category]}`
      : `${bytesText(this.liveAt(column))} at ${this.opText(column)}`;
    const x = canvas.offsetLeft + event.offsetX, width = this.tip.offsetWidth;
    this.tip.style.left = Math.max(Math.min(x + 12, this.root.clientWidth - width), 0) + 'px';
    this.tip.style.top = canvas.offsetTop + event.offsetY + 16 + 'px';
  }

  click(canvas, event) {
    if (event.offsetX < leftMargin) return;
    const value = canvas === this.map && this.valueAt(event.offsetX, event.offsetY);
    this.selectColumn(Math.floor(this.columnAt(event.offsetX)));
    if (value) this.choose(value);
  }

  place(column) {
    let f = this.bases.length - 1;
    while (f > 0 && this.bases[f] > column) --f;
    return [f, column - this.bases[f]];
  }
  opText(column) {
    const [f, i] = this.place(column), {name, ops} = this.plan.functions[f];
    return `${ops[i][0]}, instruction ${i + 1} of ${ops.length} in ${name}`;
  }

  selectColumn(column) {
    if (this.columns === 0) return;
    this.column = Math.min(Math.max(column, 0), this.columns - 1);
    const alive = this.drawn.filter(({first, end}) => first <= this.column && this.column < end).sort((a, b) => b.bytes - a.bytes);
    const shown = alive.slice(0, 10), rest = alive.slice(10);
    const [f, i] = this.place(this.column), [, kernel, us] = this.plan.functions[f].ops[i];
    this.alive.replaceChildren(
      element('h3', {textContent: `${bytesText(this.liveAt(this.column))} live at ${this.opText(this.column)}`}),
      element('div', {className: 'quiet', textContent: `kernel ${kernel || 'none'}, predicted ${timeText(us)}${this.column === this.peak ? ', the peak' : ''}`}),
      ...shown.map(value => this.rowOf(value)));
    if (rest.length > 0)
      this.alive.append(element('div', {className: 'quiet', textContent: `and ${rest.length} more, ${bytesText(rest.reduce((sum, {bytes}) => sum + bytes, 0))}`}));
    if (!this.chosen && shown.length > 0) this.choose(shown[0]);
    this.draw();
  }

  rowOf(value) {
    const key = element('i', {className: 'key'});
    key.style.background = this.plan.colors[value.category];
    return element('button', {onclick: () => this.choose(value)}, element('span', {}, key, value.name), element('b', {textContent: bytesText(value.bytes)}));
  }

  choose(value, tellLinked = true) {
    this.chosen = value;
    const rows = [['bytes', `${bytesText(value.bytes)} at ${bytesText(value.offset)}`], ['type', value.type], ['category', this.plan.categories[value.category]]];
    if (value.fn < 0) rows.push(['lives', 'always']);
    else rows.push(['lives', `from ${this.opText(value.first)} to instruction ${value.end - this.bases[value.fn]}`]);
    if (value.origin) {
      const [node, op, module, source] = value.origin;
      rows.push(['module', module], ['source', source], ['node', `${node} (${op})`]);
    }
    rows.push(['reason', value.reason]);
    const list = element('dl', {});
    for (const [name, text] of rows) if (text) list.append(element('dt', {textContent: name}), element('dd', {textContent: text}));
    this.details.replaceChildren(element('h3', {textContent: '%' + value.name}), list);
    this.draw();
    if (!tellLinked) return;
    for (const other of this.linked) {
      const same = other.values.find(each => each.name === value.name);
      if (same) other.choose(same, false);
    }
  }

  find(text, tellLinked = true) {
    const wanted = text.toLowerCase().replace(/^%/, '');
    this.search.value = text;
    this.hits = wanted ? this.values.filter(({name}) => name.toLowerCase().includes(wanted)) : [];
    this.matches = wanted ? new Set(this.hits.map(value => this.storage(value))) : null;
    this.hit = -1;
    this.found.textContent = wanted ? `${this.hits.length} found` : '';
    if (this.hits.length > 0) this.choose(this.hits[0], false);
    this.draw();
    if (tellLinked) for (const other of this.linked) other.find(text, false);
  }
  goToMatch(step) {
    if (!this.hits || this.hits.length === 0) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    const value = this.hits[this.hit];
    this.found.textContent = `${this.hit + 1} of ${this.hits.length}`;
    this.selectColumn(value.first);
    this.choose(value);
    this.zoomTo(this.storage(value));
  }
}

// Two plans side by side have one scale for each memory, and what is searched or chosen in one is shown in the others.
const memoryViews = [...document.querySelectorAll('.memory')].map(root =>
  new MemoryView(root, JSON.parse(document.getElementById(root.dataset.plan).textContent)));
for (const view of memoryViews) {
  view.linked = memoryViews.filter(each => each !== view);
  const alike = memoryViews.filter(each => each.plan.space === view.plan.space);
  view.top = Math.max(...alike.map(each => each.plan.arena_bytes), 1);
  view.scale = Math.max(...alike.map(each => each.liveAt(each.peak))) * 1.05;
  view.reset();
  view.draw();
}
