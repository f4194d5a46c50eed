// Small helpers for the page. Every text becomes a text node, so no text is ever read as HTML.

/** Create an HTML element. An attribute `onNAME` is a listener; `true` and `false` set and leave out an attribute. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Create an SVG element, with the same arguments as `el`. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Names with their values, as a list. */
export function pairs(entries) {
  return el("dl", { class: "pairs" },
    ...entries.map(([name, value]) => el("div", {},
      el("dt", {}, name),
      el("dd", {}, typeof value === "number" ? number(value) : String(value)))));
}

/** A table with a header row; each row begins with its header. Numbers are aligned at their end. */
export function table(titles, rows) {
  const place = (cell) => ({ class: typeof cell === "number" || cell === "–" ? "figure" : null });
  const content = (cell) => (typeof cell === "number" ? number(cell) : cell);
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...titles.map((title, column) =>
      el("th", { scope: "col", ...place(rows[0]?.[column]) }, content(title))))),
    el("tbody", {}, ...rows.map(([first, ...others]) => el("tr", {},
      el("th", { scope: "row" }, first),
      ...others.map((cell) => el("td", place(cell), content(cell))))))));
}

/** A score or a share with three digits after the point. */
export function score(value) {
  return value > 0 && value < 0.0005 ? "<0.001" : value.toFixed(3);
}

/** A number with at most four significant digits, and with separators. */
export function number(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

/** `1 label`, `2 labels`. */
export function count(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}
