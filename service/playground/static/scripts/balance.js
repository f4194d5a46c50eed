// The view of one query at many balances of label texts and training texts: one line for each label, through its ranks at
// each lambda.

import { el, number, svg, table } from "./dom.js";
import { Task, send } from "./service.js";
import { chosenOptions, requestOptions, store } from "./state.js";

const LAMBDAS = [0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
const DEPTH = 10;
const DELAY = 300;
// So many requests run at the same time; more would delay the requests of others.
const TOGETHER = 2;
// Pixels: a row of the chart, the space above it, and the space at its sides with and without the names of labels.
const ROW = 30, TOP = 34, NAME = 170, EDGE = 26;

export class BalanceView {
  #asked = "";
  #columns = [];
  #selected = null;

  constructor(section, facts) {
    Object.assign(this, { section, facts });
    this.status = section.querySelector(".status");
    this.chart = section.querySelector(".chart");
    this.task = new Task(section, section.querySelector(".notice-slot"));
    new ResizeObserver(() => this.#draw()).observe(this.chart);
  }

  show() {
    const { query } = store.state;
    const { lambda, top_k, order, rerank, ...options } = requestOptions(this.facts);
    const asked = JSON.stringify([query, options, this.facts.version]);
    if (query.trim() === "") {
      this.hide();
      this.#columns = [];
      this.#draw();
      this.status.textContent = "Type a text above to see its labels at each balance.";
    } else if (asked !== this.#asked) {
      this.#asked = asked;
      this.task.start((signal) => this.#sweep({ query, ...options, top_k: DEPTH, order: "score" }, signal), DELAY);
    }
  }

  hide() {
    this.#asked = "";
    this.task.stop();
  }

  async #sweep(options, signal) {
    const columns = LAMBDAS.map((lambda) => ({ lambda, labels: [] }));
    const waiting = [...columns];
    const ask = async () => {
      for (let column = waiting.shift(); column; column = waiting.shift()) {
        const { json } = await send("predict", { body: { ...options, lambda: column.lambda }, signal });
        column.labels = json.labels;
        this.status.textContent = `${columns.filter(({ labels }) => labels.length > 0).length} of ${columns.length} balances`;
      }
    };
    await Promise.all(Array.from({ length: TOGETHER }, ask));
    const { lambda } = { ...this.facts.defaults, ...chosenOptions(this.facts) };
    const distance = (column) => Math.abs(column.lambda - lambda);
    const closest = columns.reduce((one, other) => (distance(other) < distance(one) ? other : one));
    this.#columns = columns;
    this.#selected = closest.labels[0]?.uid ?? null;
    this.#draw();
  }

  #draw() {
    const width = Math.floor(this.chart.clientWidth);
    if (this.#columns.length === 0) this.chart.replaceChildren();
    if (this.#columns.length === 0 || width === 0) return;
    const select = (uid) => {
      this.#selected = uid;
      this.#draw();
    };
    const lines = linesOf(this.#columns);
    const selected = lines.find(({ uid }) => uid === this.#selected);
    this.status.textContent = selected ? `The emphasised line is “${selected.name}”. Select another line to follow it.` : "No label";
    const open = this.chart.querySelector("details")?.open ?? false;
    this.chart.replaceChildren(
      drawLines(lines, this.#columns, width, this.#selected, select),
      el("details", { open },
        el("summary", {}, "Ranks as a table"),
        table(["Label", ...LAMBDAS], lines.map(({ uid, name, ranks }) => [
          el("button", { type: "button", class: "link", dir: "auto", "aria-pressed": String(uid === this.#selected), onclick: () => select(uid) }, name),
          ...ranks.map((rank) => (rank === undefined ? "–" : rank + 1)),
        ]))));
  }
}

/** For each label in any column, its ranks: `undefined` where it is not among the labels. */
function linesOf(columns) {
  const lines = new Map();
  columns.forEach(({ labels }, column) => labels.forEach(({ uid, name }, rank) => {
    if (!lines.has(uid)) lines.set(uid, { uid, name: name || uid, ranks: columns.map(() => undefined) });
    lines.get(uid).ranks[column] = rank;
  }));
  return [...lines.values()];
}

function drawLines(lines, columns, width, selected, onSelect) {
  const left = width >= 660 ? NAME : EDGE;
  const right = width >= 440 ? NAME : EDGE;
  const last = columns.length - 1;
  const height = TOP + ROW * Math.max(...columns.map(({ labels }) => labels.length), 1) + 8;
  const x = (column) => left + (column / last) * (width - left - right);
  const y = (rank) => TOP + (rank + 0.5) * ROW;
  const every = (width - left - right) / columns.length < 26 ? 2 : 1;
  const groups = lines.map(({ uid, name, ranks }) => {
    const curve = path(ranks, x, y);
    return svg("g", { class: uid === selected ? "line selected" : "line", onclick: () => onSelect(uid) },
      svg("title", {}, name),
      svg("path", { class: "touch", d: curve }),
      svg("path", { d: curve }),
      ...ranks.map((rank, column) => rank !== undefined && svg("circle", { cx: x(column), cy: y(rank), r: 4 })),
      left > EDGE && ranks[0] !== undefined && svg("text", { x: x(0) - 12, y: y(ranks[0]) + 4, "text-anchor": "end" }, shortened(name)),
      right > EDGE && ranks[last] !== undefined && svg("text", { x: x(last) + 12, y: y(ranks[last]) + 4 }, shortened(name)),
    );
  });
  // The emphasised line is drawn last, above the others.
  groups.sort((one, other) => one.classList.contains("selected") - other.classList.contains("selected"));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "lines", "aria-label": "Ranks of labels by lambda; the table below has the same numbers" },
    svg("text", { x: x(0) - 4, y: 12 }, "label texts"),
    svg("text", { x: x(last) + 4, y: 12, "text-anchor": "end" }, "training texts"),
    ...columns.map(({ lambda }, column) => column % every === 0 && svg("text", { x: x(column), y: 28, "text-anchor": "middle" }, number(lambda))),
    ...groups,
  );
}

function path(ranks, x, y) {
  return ranks.map((rank, column) => {
    if (rank === undefined) return "";
    if (ranks[column - 1] === undefined) return `M${x(column)},${y(rank)}`;
    const middle = (x(column - 1) + x(column)) / 2;
    return `C${middle},${y(ranks[column - 1])} ${middle},${y(rank)} ${x(column)},${y(rank)}`;
  }).join("");
}

// Measures names as they are drawn when they are emphasised; other fonts are wider or narrower than expected.
const pen = document.createElement("canvas").getContext("2d");

function shortened(text) {
  pen.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
  let shown = text;
  for (let length = text.length; length > 0 && pen.measureText(shown).width > NAME - 16; length--) {
    shown = `${text.slice(0, length - 1)}…`;
  }
  return shown;
}
