// The view of the bundle: its size, its indexes, its quality figures and the measurements of its build.

import { bytes, el, number } from "../dom.js";
import { indexFacts, recallChart } from "../parts/curve.js";

const PARTS = { instances: "Training texts", labels: "Labels" };

export class BundleView {
  constructor(section, facts) {
    Object.assign(this, { section, facts });
  }

  show() {
    const { facts } = this;
    this.section.querySelector(".facts").replaceChildren(
      pairs({
        version: facts.version,
        created: date(facts.created),
        "serving since": date(facts.since),
        "training texts": number(facts.counts.instances),
        labels: number(facts.counts.labels),
        pairs: number(facts.counts.pairs),
        size: bytes(facts.size_bytes),
        encoder: `${facts.encoder.name}, ${facts.encoder.precision}, ${facts.encoder.max_length} tokens`,
        dimension: number(facts.dim),
        memory: facts.writable ? "this API key may change it" : "read-only",
      }),
      ...Object.entries(PARTS).flatMap(([part, title]) => this.#index(part, title)),
      el("h3", {}, "Default options"),
      pairs(Object.fromEntries(Object.entries(facts.defaults).map(([name, value]) => [name, typeof value === "number" ? number(value) : String(value)]))),
      ...(facts.checks.length ? [el("h3", {}, "Checks of the build"), el("div", { class: "scroll" }, checksTable(facts.checks))] : []),
      ...(Object.keys(facts.metrics).length ? [el("h3", {}, "Measurements"), el("div", { class: "scroll" }, metricsTable(facts.metrics))] : []),
    );
  }

  hide() {}

  #index(part, title) {
    const info = this.facts.index[part];
    const points = (this.facts.curves[part] ?? []).filter((point) => point.keys > 0);
    const curve = points.length > 2 && el("figure", {},
      recallChart(points, info),
      el("figcaption", { class: "small" }, "Each point is an index that the build measured: recall against the time of one query. The large point is the chosen index."));
    return [el("h3", {}, `Index: ${title.toLowerCase()}`), indexFacts(info), curve || ""];
  }
}

function pairs(facts) {
  return el("dl", { class: "pairs" },
    ...Object.entries(facts).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function date(text) {
  return new Date(text).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

function checksTable(checks) {
  const bound = ({ least, most }) => (least !== null ? `at least ${number(least)}` : most !== null ? `at most ${number(most)}` : "–");
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Check"), el("th", { scope: "col", class: "figure" }, "Found"),
      el("th", { scope: "col" }, "Bound"), el("th", { scope: "col" }, "Result"))),
    el("tbody", {}, ...checks.map((check) => el("tr", {},
      el("th", { scope: "row" }, check.name),
      el("td", { class: "figure" }, check.found === null ? "–" : number(check.found)),
      el("td", {}, bound(check)),
      el("td", { class: check.passed ? "same" : "different" }, !check.passed ? "failed" : bound(check) === "–" ? "measured" : "passed")))));
}

function metricsTable(metrics) {
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Name"), el("th", { scope: "col", class: "figure" }, "Value"))),
    el("tbody", {}, ...Object.entries(metrics).map(([name, value]) => el("tr", {},
      el("th", { scope: "row" }, name), el("td", { class: "figure" }, number(value))))));
}
