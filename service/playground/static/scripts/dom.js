// Small helpers for the page. Every text becomes a text node, so no text is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Create an HTML element. An attribute `onNAME` is a listener; `true` and `false` set and leave out an attribute. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Create an SVG element, with the same arguments as `el`. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
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

/** Make `nodes` the children of `parent`. Children that are already in place are not moved, so they keep the focus. */
export function arrange(parent, nodes) {
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}

/** A score or a share with three digits after the point. */
export function score(value) {
  return value > 0 && value < 0.0005 ? "<0.001" : value.toFixed(3);
}

export function percent(value) {
  return `${(100 * value).toFixed(value > 0 && value < 0.01 ? 1 : 0)}%`;
}

/** A number with at most four significant digits, and with separators. */
export function number(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
}

export function bytes(value) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  const step = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(value) / 3));
  return `${number(Number((value / 1000 ** step).toPrecision(3)))} ${units[step]}`;
}

/** `1 label`, `2 labels`. */
export function count(value, noun) {
  return `${number(value)} ${value === 1 ? noun : `${noun}s`}`;
}
