// A bump chart: one line for each label, through its ranks at each lambda.

import { el, number, svg } from "../dom.js";

const ROW = 30, TOP = 34, BOTTOM = 8, NAME = 170, EDGE = 26;
// Measures names as they are drawn when they are emphasised; other fonts are wider or narrower than expected.
const pen = document.createElement("canvas").getContext("2d");

/**
 * Draw the ranks of labels.
 *
 * @param columns For each lambda, the labels in order: [{ lambda, labels }].
 * @param width The width in pixels.
 * @param selected The uid of the emphasised label.
 * @param onSelect Called with a uid.
 */
export function bumpChart(columns, width, selected, onSelect) {
  const lines = linesOf(columns);
  const names = { left: width >= 660 ? NAME : EDGE, right: width >= 440 ? NAME : EDGE };
  const depth = Math.max(...columns.map(({ labels }) => labels.length), 1);
  const x = (column) => names.left + (column / (columns.length - 1)) * (width - names.left - names.right);
  const y = (rank) => TOP + (rank + 0.5) * ROW;
  const height = TOP + depth * ROW + BOTTOM;
  const last = columns.length - 1;
  const every = (width - names.left - names.right) / columns.length < 26 ? 2 : 1;
  const groups = lines.map((line) => {
    const group = svg("g", { class: "line", "data-uid": line.uid, onclick: () => onSelect(line.uid) },
      svg("title", {}, line.text),
      svg("path", { class: "touch", d: path(line.ranks, x, y) }),
      svg("path", { d: path(line.ranks, x, y) }),
      ...line.ranks.map((rank, column) => rank !== undefined && svg("circle", { cx: x(column), cy: y(rank), r: 4 })),
      names.left > EDGE && line.ranks[0] !== undefined && name(line.text, names.left, x(0) - 12, y(line.ranks[0]), "end"),
      names.right > EDGE && line.ranks[last] !== undefined && name(line.text, names.right, x(last) + 12, y(line.ranks[last]), "start"),
    );
    return group;
  });
  // The emphasised line is drawn last, above the others.
  const ordered = [...groups].sort((one, other) => (one.dataset.uid === selected) - (other.dataset.uid === selected));
  for (const group of groups) group.classList.toggle("selected", group.dataset.uid === selected);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "bump", "aria-label": "Ranks of labels by lambda; the table below has the same numbers" },
    svg("text", { class: "axis", x: x(0) - 4, y: 12 }, "label texts"),
    svg("text", { class: "axis", x: x(last) + 4, y: 12, "text-anchor": "end" }, "training texts"),
    ...columns.map(({ lambda }, column) => column % every === 0 && svg("text", { class: "axis", x: x(column), y: 28, "text-anchor": "middle" }, number(lambda))),
    ...ordered,
  );
}

/** The ranks as a table; its row headers select a label. */
export function ranksTable(columns, selected, onSelect) {
  return el("table", {},
    el("caption", { class: "hidden" }, "Rank of each label at each lambda"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Label"),
      ...columns.map(({ lambda }) => el("th", { scope: "col", class: "figure" }, number(lambda))))),
    el("tbody", {}, ...linesOf(columns).map((line) => el("tr", { class: line.uid === selected ? "selected" : null },
      el("th", { scope: "row" }, el("button", { type: "button", class: "ask", dir: "auto", onclick: () => onSelect(line.uid) }, line.text)),
      ...line.ranks.map((rank) => el("td", { class: "figure" }, rank === undefined ? "–" : String(rank + 1)))))),
  );
}

/** For each label in any column, its ranks: `undefined` where it is not among the labels. */
function linesOf(columns) {
  const lines = new Map();
  columns.forEach(({ labels }, column) => labels.forEach((label, rank) => {
    if (!lines.has(label.uid)) lines.set(label.uid, { uid: label.uid, text: label.text || label.uid, ranks: columns.map(() => undefined) });
    lines.get(label.uid).ranks[column] = rank;
  }));
  return [...lines.values()];
}

function path(ranks, x, y) {
  let drawn = "";
  ranks.forEach((rank, column) => {
    if (rank === undefined) return;
    const before = ranks[column - 1];
    if (before === undefined) {
      drawn += `M${x(column)},${y(rank)}`;
    } else {
      const middle = (x(column - 1) + x(column)) / 2;
      drawn += `C${middle},${y(before)} ${middle},${y(rank)} ${x(column)},${y(rank)}`;
    }
  });
  return drawn;
}

function name(text, space, x, y, anchor) {
  return svg("text", { x, y: y + 4, "text-anchor": anchor }, shortened(text, space - 16));
}

function shortened(text, room) {
  pen.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
  let shown = text;
  for (let length = text.length; length > 0 && pen.measureText(shown).width > room; length--) {
    shown = `${text.slice(0, length - 1)}…`;
  }
  return shown;
}
