// The view of the version that answers: its size, encoder, indexes and default options, and its quality figures.

import { count, el, number, pairs, table } from "./dom.js";

export class AboutView {
  constructor(section, facts) {
    Object.assign(this, { section, facts });
  }

  show() {
    const { facts } = this;
    const { counts, encoder, checks } = facts;
    const part = (title, ...content) => [el("h3", {}, title), ...content];
    this.section.querySelector(".facts").replaceChildren(
      pairs([
        ["version", facts.version],
        ["created", date(facts.created)],
        ["serving since", date(facts.since)],
        ["training texts", counts.instances],
        ["labels", counts.labels],
        ["pairs", counts.pairs],
        ...(facts.fields.length ? [["fields of labels", facts.fields.join(", ")]] : []),
        ["size", `${number(Number((facts.size_bytes / 1e6).toPrecision(3)))} MB`],
        ["encoder", encoder.kind === "server" ? encoder.name : `${encoder.name}, ${encoder.precision}, ${encoder.max_length} tokens`],
        ["dimension", facts.dim],
        ["memory", facts.writable ? "this API key may change it" : "read-only"],
      ]),
      ...part("Index: training texts", ...this.#index("instances")),
      ...part("Index: labels", ...this.#index("labels")),
      ...part("Default options", table(["Option", "Name in requests", "Value"], this.#defaults())),
      ...(checks.length ? part("Checks of the build", table(["Check", "Found", "Bound", "Result"], checks.map(checkRow))) : []),
      ...(facts.probabilities ? part("Quality of the probabilities", table(["Name", "Value"], this.#calibration())) : []),
      ...part("Measurements", table(["Name", "Value"], Object.entries(facts.metrics))),
    );
  }

  #defaults() {
    const { defaults, options } = this.facts;
    return Object.entries(defaults).map(([name, value]) => [options[name].description, name, valueText(value)]);
  }

  #calibration() {
    const { metrics, texts, mean_top_probability: top } = this.facts.probabilities;
    return [["Held-out texts", texts], ["Mean probability of the first label", top], ...Object.entries(metrics)];
  }

  hide() {}

  /** The chosen index of one part of the memory, and the indexes that the build measured, the best ones first. */
  #index(part) {
    const points = (this.facts.curves[part] ?? []).filter((point) => point.keys > 0);
    points.sort((one, other) => other.recall - one.recall || one.milliseconds - other.milliseconds);
    const rows = points.map(({ factory, effort, recall, milliseconds }) => [factory, effort, recall, milliseconds]);
    const measured = el("details", {},
      el("summary", {}, count(points.length, "measured index", "measured indexes")),
      table(["Index", "Effort", "Recall", "Milliseconds a query"], rows));
    return [pairs(Object.entries(this.facts.index[part])), points.length > 1 ? measured : ""];
  }
}

function valueText(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? number(value) : value ?? "none";
}

function date(text) {
  return new Date(text).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
}

function checkRow({ name, found, least, most, passed }) {
  const bound = least !== null ? `at least ${number(least)}` : most !== null ? `at most ${number(most)}` : "none";
  const result = !passed ? "failed" : bound === "none" ? "measured" : "passed";
  return [name, found ?? "–", bound, result];
}
