'use strict';
// The curves of a run, from the lines of JSON that it writes. A page that `watch` serves asks for new lines every two
// seconds; one that was written as a file has them all.

const duration = s => s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
const plain = value => value === null || value === undefined ? 'not finite' : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(5));

class Chart {
  // `lines`: constant values with their names, such as the promise.
  constructor(root, title, text, color, lines = []) {
    this.text = text;
    this.color = color;
    this.lines = lines;
    this.points = [];
    this.marks = [];
    this.value = element('b', {});
    this.canvas = element('canvas', {className: 'chart', ariaLabel: title});
    root.append(element('figure', {}, element('figcaption', {}, title, this.value), this.canvas));
    this.canvas.onpointermove = event => this.show(event.offsetX);
    this.canvas.onpointerleave = () => { this.shown = null; this.draw(); };
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  show(x) {
    const step = this.low + (x - leftMargin) / Math.max(this.canvas.clientWidth - leftMargin, 1) * (this.high - this.low);
    const near = (a, b) => Math.abs(a[0] - step) < Math.abs(b[0] - step) ? a : b;
    this.shown = this.points.length > 0 ? this.points.reduce(near) : null;
    this.draw();
  }

  draw() {
    const {context, width, height} = contextOf(this.canvas), foot = 18;
    const finite = this.points.filter(([, value]) => Number.isFinite(value));
    if (finite.length === 0) return;
    [this.low, this.high] = [this.points[0][0], Math.max(this.points.at(-1)[0], this.points[0][0] + 1)];
    const values = [...finite, ...this.marks].map(([, value]) => value).concat(this.lines.map(([, value]) => value));
    let bottom = Infinity, top = -Infinity;
    for (const value of values) [bottom, top] = [Math.min(bottom, value), Math.max(top, value)];
    if (this.lines.length > 0) bottom = 0;
    const margin = (top - bottom || Math.abs(top) || 1) * 0.08;
    [bottom, top] = [bottom < 0 ? bottom - margin : Math.max(bottom - margin, 0), top + margin];
    const x = step => leftMargin + (step - this.low) / (this.high - this.low) * (width - leftMargin - 4);
    const y = value => (height - foot) * (1 - (value - bottom) / (top - bottom));
    this.drawAxes(context, width, height - foot, y, bottom, top);
    this.drawLine(context, finite, x, y);
    context.fillStyle = color('--over');
    for (const [step, value] of this.marks) context.fillRect(x(step) - 2.5, y(value) - 2.5, 5, 5);
    for (const [name, value] of this.lines) {
      context.fillRect(leftMargin, y(value), width - leftMargin, 1);
      context.textAlign = 'right';
      context.fillText(name, width - 4, y(value) + 9);
    }
    const [step, value] = this.shown || this.points.at(-1);
    this.value.textContent = `${this.text(value)} at step ${step}`;
    if (this.shown && Number.isFinite(value)) {
      context.beginPath();
      context.arc(x(step), y(value), 4, 0, 7);
      context.fill();
    }
  }

  drawAxes(context, width, foot, y, bottom, top) {
    for (let i = 0; i <= 3; ++i) {
      const value = bottom + (top - bottom) * i / 3;
      context.textAlign = 'right';
      context.fillStyle = color('--quiet');
      context.fillText(this.text(value, true), leftMargin - 6, Math.max(y(value), 7));
      context.fillStyle = color('--rule');
      context.fillRect(leftMargin, Math.min(y(value), foot - 1), width - leftMargin, 1);
    }
    context.fillStyle = color('--quiet');
    context.textAlign = 'left';
    context.fillText(`step ${this.low}`, leftMargin, foot + 10);
    context.textAlign = 'right';
    context.fillText(String(this.high), width - 4, foot + 10);
  }

  // With more steps than pixels, the range of each pixel's steps behind a line through their means.
  drawLine(context, points, x, y) {
    const columns = new Map();
    for (const [step, value] of points) {
      const at = Math.round(x(step)), column = columns.get(at) || {low: value, high: value, sum: 0, count: 0};
      columns.set(at, {low: Math.min(column.low, value), high: Math.max(column.high, value), sum: column.sum + value, count: column.count + 1});
    }
    context.fillStyle = context.strokeStyle = this.color;
    context.globalAlpha = 0.3;
    for (const [at, {low, high}] of columns) context.fillRect(at, y(high), 1, y(low) - y(high));
    context.globalAlpha = 1;
    context.lineWidth = 1.6;
    context.beginPath();
    for (const [at, {sum, count}] of columns) context.lineTo(at, y(sum / count));
    if (columns.size === 1) for (const [at, {sum}] of columns) context.fillRect(at - 2, y(sum / points.length) - 2, 4, 4);
    context.stroke();
  }
}

class RunView {
  constructor(root, facts) {
    this.facts = facts;
    this.rest = '';
    this.read = 0;
    this.recent = [];
    this.state = element('p', {});
    const charts = element('div', {className: 'charts'});
    root.append(this.state, charts);
    const number = (value, short) => short ? String(+value.toPrecision(3)) : plain(value);
    const bytes = value => bytesText(Math.max(value, 0));
    this.charts = {
      loss: new Chart(charts, 'loss', number, '#2e7d5b'),
      tokens_or_samples_per_s: new Chart(charts, `${facts.items} per second`, (value, short) => Math.round(short ? +value.toPrecision(3) : value).toLocaleString('en'), '#3b6ea5'),
      device_bytes: new Chart(charts, 'memory held', bytes, '#8e5ea2', [[`promised ${bytesText(facts.promised_bytes)}`, facts.promised_bytes]]),
      step_ms: new Chart(charts, 'time of a step', value => timeText(1e3 * Math.max(value, 0)), '#b5651d', [[`predicted ${timeText(facts.predicted_step_us)}`, facts.predicted_step_us / 1e3]]),
      grad_norm: new Chart(charts, 'norm of the gradients', number, '#4fa3a5'),
      learning_rate: new Chart(charts, 'learning rate', value => String(+value.toPrecision(2)), '#6b8fbf'),
    };
  }

  add(text) {
    this.read += new TextEncoder().encode(text).length;
    const lines = (this.rest + text).split('\n');
    this.rest = lines.pop();
    for (const line of lines) this.addRecord(JSON.parse(line));
    for (const chart of Object.values(this.charts)) chart.draw();
    this.tell();
  }

  addRecord(record) {
    if (record.evaluation) {
      if (Number.isFinite(record.evaluation.loss)) this.charts.loss.marks.push([record.step, record.evaluation.loss]);
      this.evaluation = record;
      return;
    }
    for (const [name, chart] of Object.entries(this.charts)) chart.points.push([record.step, record[name]]);
    this.last = record;
    this.recent.push(record.step_ms);
    if (this.recent.length > 50) this.recent.shift();
  }

  tell() {
    if (!this.last) return this.state.replaceChildren('no step is done yet');
    const {step, loss, device_bytes} = this.last, {steps, promised_bytes} = this.facts;
    const mean = this.recent.reduce((sum, each) => sum + each, 0) / this.recent.length;
    const left = step < steps ? `, about ${duration((steps - step) * mean / 1e3)} left` : '';
    const parts = [element('b', {textContent: `step ${step} of ${steps}`}), `${left}; loss ${plain(loss)}; holds ${bytesText(device_bytes)} of ${bytesText(promised_bytes)} that the plan promised`];
    if (this.evaluation) {
      const {samples, seconds, best, ...metrics} = this.evaluation.evaluation;
      parts.push(`; evaluated at step ${this.evaluation.step} with ${samples} samples: ${Object.entries(metrics).map(([name, value]) => `${name} ${plain(value)}`).join(', ')}`);
    }
    this.state.replaceChildren(...parts);
  }

  // A file that is shorter than what was read belongs to another run.
  async follow() {
    let wait = 2000;
    try {
      const answer = await fetch(`metrics?from=${this.read}`);
      const text = await answer.text();
      if (text === 'anew') return location.reload();
      if (text) this.add(text);
      if (text.length > 1e6) wait = 0;  // a long log comes in parts
      this.state.classList.remove('over');
    } catch (failure) {
      this.state.classList.add('over');
    }
    setTimeout(() => this.follow(), wait);
  }
}

const runView = new RunView(document.querySelector('.run'), JSON.parse(document.getElementById('run-facts').textContent));
const runRecords = document.getElementById('run-records');
if (runRecords) runView.add(JSON.parse(runRecords.textContent));
else runView.follow();
