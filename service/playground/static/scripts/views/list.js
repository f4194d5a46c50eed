// The view of many queries: how their answers differ between two settings.

import { send } from "../api.js";
import { count, el, percent } from "../dom.js";
import { showMessage } from "../notices.js";
import { overlap, rankChanges } from "../parts/answers.js";
import { requestOptions } from "../parts/settings.js";
import { store } from "../state.js";
import { Task } from "../task.js";

const MOST_QUERIES = 500;
// Queries in one request; small requests let other requests pass between them.
const TOGETHER = 16;

export class ListView {
  #compared = "";

  constructor(section, facts, compareQuery) {
    Object.assign(this, { section, facts, compareQuery });
    this.field = section.querySelector("#queries");
    this.status = section.querySelector(".status");
    this.result = section.querySelector(".result");
    this.slot = section.querySelector(".notice-slot");
    this.task = new Task(section, this.slot);
    this.field.addEventListener("input", () => store.update({ queries: this.field.value }));
    section.querySelector("#compare-queries").addEventListener("click", () => this.#start());
    section.querySelector("#use-examples").addEventListener("click", () => {
      store.update({ queries: facts.examples.join("\n") });
      this.#start();
    });
  }

  show({ entered = false } = {}) {
    if (document.activeElement !== this.field) this.field.value = store.state.queries;
    if (entered && this.#queries().length > 0) this.#start();
    else if (this.result.hasChildNodes() && this.#compared !== this.#request()) {
      this.status.textContent = "The queries or the options have changed. Select Compare to update the table.";
    }
  }

  hide() {
    this.task.stop();
  }

  #queries() {
    return store.state.queries.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  }

  #request() {
    return JSON.stringify([this.#queries(), ...this.#options()]);
  }

  #options() {
    return ["a", "b"].map((name) => requestOptions(name, this.facts.defaults));
  }

  #start() {
    const queries = this.#queries();
    this.result.replaceChildren();
    this.status.textContent = "";
    if (queries.length === 0) {
      showMessage(this.slot, "No queries", "Paste at least one query, or use the examples.");
    } else if (queries.length > MOST_QUERIES) {
      showMessage(this.slot, "Too many queries",
        `This page compares at most ${MOST_QUERIES} queries; found ${count(queries.length, "query line")}. Use the HTTP API for more.`);
    } else {
      this.#compared = this.#request();
      this.task.start((signal) => this.#compare(queries, signal));
    }
  }

  async #compare(queries, signal) {
    const step = Math.min(TOGETHER, this.facts.max_batch);
    const rows = [];
    for (let start = 0; start < queries.length; start += step) {
      const part = queries.slice(start, start + step);
      const [a, b] = await Promise.all(this.#options().map(async (options) => {
        const { json } = await send("predict/batch", { body: { queries: part, ...options }, signal });
        return json.results;
      }));
      part.forEach((query, place) => rows.push(difference(query, a[place].labels, b[place].labels)));
      this.status.textContent = `${rows.length} of ${queries.length} queries`;
    }
    this.#draw(rows);
  }

  #draw(rows) {
    const mean = rows.reduce((sum, row) => sum + row.share, 0) / rows.length;
    const same = rows.filter((row) => row.sameBest).length;
    this.status.textContent =
      `On average, ${percent(mean)} of the labels are in both answers. ` +
      `The best label is the same for ${same} of ${rows.length}. The largest differences come first.`;
    const ordered = [...rows].sort((one, other) => one.share - other.share || other.moved - one.moved);
    this.result.replaceChildren(el("table", {},
      el("thead", {}, el("tr", {}, ...["Query", "Best in A", "Best in B"].map((title) => el("th", { scope: "col" }, title)),
        ...["In both", "Moved"].map((title) => el("th", { scope: "col", class: "figure" }, title)))),
      el("tbody", {}, ...ordered.map((row) => this.#row(row)))));
  }

  #row({ query, a, b, shared, longest, moved, sameBest }) {
    return el("tr", {},
      el("th", { scope: "row" }, el("button", { type: "button", class: "ask", dir: "auto", onclick: () => this.compareQuery(query) }, query)),
      el("td", { dir: "auto" }, a[0]?.text ?? "–"),
      el("td", { dir: "auto", class: sameBest ? "same" : "different" }, b[0]?.text ?? "–"),
      el("td", { class: "figure" }, `${shared} of ${longest}`),
      el("td", { class: "figure" }, String(moved)));
  }
}

/** How two answers to a query differ; `moved` counts the labels in both answers with another rank. */
function difference(query, a, b) {
  const shared = overlap(a, b);
  const longest = Math.max(a.length, b.length);
  const moved = [...rankChanges(a, b, "").values()].filter((mark) => mark && mark.kind !== "only").length;
  return { query, a, b, shared, longest, moved, share: longest ? shared / longest : 1, sameBest: a[0]?.uid === b[0]?.uid };
}
