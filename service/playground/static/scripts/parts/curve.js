// A chart of the measurements from which the build chose an index: recall against time.

import { el, number, svg } from "../dom.js";

const WIDTH = 640, HEIGHT = 280, LEFT = 52, RIGHT = 16, TOP = 14, BOTTOM = 40;

/** Draw the points of one part of the memory, and mark the chosen one. */
export function recallChart(points, chosen) {
  const times = points.map((point) => Math.max(point.milliseconds, 1e-3));
  const recalls = points.map((point) => point.recall);
  const low = Math.log10(Math.min(...times)) - 0.1, high = Math.log10(Math.max(...times)) + 0.1;
  const least = Math.min(0.98, Math.floor(20 * Math.min(...recalls)) / 20);
  const x = (time) => LEFT + ((Math.log10(Math.max(time, 1e-3)) - low) / (high - low)) * (WIDTH - LEFT - RIGHT);
  const y = (recall) => TOP + ((1 - recall) / (1 - least)) * (HEIGHT - TOP - BOTTOM);
  const isChosen = (point) => ["factory", "keys", "effort", "refine"].every((field) => point[field] === chosen[field]);
  const ordered = [...points].sort((one, other) => isChosen(one) - isChosen(other));
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "curve", "aria-label": describe(points, chosen) },
    ...ticks(least).map((recall) => svg("g", {},
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(recall), y2: y(recall) }),
      svg("text", { x: LEFT - 8, y: y(recall) + 4, "text-anchor": "end" }, recall.toFixed(least < 0.9 ? 2 : 3)))),
    ...decades(low, high).map((time) => svg("text", { x: x(time), y: HEIGHT - 20, "text-anchor": "middle" }, `${number(time)} ms`)),
    svg("text", { x: LEFT, y: HEIGHT - 4 }, "time of one query"),
    ...ordered.map((point) =>
      svg("circle", { cx: x(point.milliseconds), cy: y(point.recall), r: isChosen(point) ? 7 : 4, class: isChosen(point) ? "chosen" : "point" },
        svg("title", {}, `${point.factory}, effort ${point.effort}: recall ${number(point.recall)}, ${number(point.milliseconds)} ms`))),
  );
}

function describe(points, chosen) {
  return `${points.length} measured indexes, recall against time. Chosen: ${chosen.factory}, effort ${chosen.effort}.`;
}

/** Round recalls between `least` and 1. */
function ticks(least) {
  const step = [0.2, 0.1, 0.05, 0.02, 0.01, 0.005].find((each) => (1 - least) / each >= 3);
  return Array.from({ length: Math.floor((1 - least) / step + 1e-9) + 1 }, (_, place) => 1 - place * step);
}

/** Round times between two powers of ten. */
function decades(low, high) {
  const found = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const factor of [1, 3]) {
      const exponent = power + Math.log10(factor);
      if (exponent >= low && exponent <= high) found.push(factor * 10 ** power);
    }
  }
  return found;
}

/** The parameters of the chosen index. */
export function indexFacts(info) {
  return el("dl", { class: "pairs" },
    ...Object.entries(info).map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, typeof value === "number" ? number(value) : String(value)))));
}
