// The view of one query at many lambdas.

import { send } from "../api.js";
import { el, number } from "../dom.js";
import { bumpChart, ranksTable } from "../parts/bump.js";
import { requestOptions, resolve } from "../parts/settings.js";
import { store } from "../state.js";
import { Task } from "../task.js";

const LAMBDAS = [0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
const DEPTH = 10;
const DELAY = 300;
// So many requests run at the same time; more would delay the requests of others.
const TOGETHER = 2;

export class SweepView {
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
    const { lambda, top_k, ...options } = requestOptions("a", this.facts.defaults);
    const asked = JSON.stringify([query, options, this.facts.version]);
    if (query.trim() === "") {
      this.hide();
      this.#columns = [];
      this.#draw();
      this.status.textContent = "Type a text above to see its labels at each lambda.";
    } else if (asked !== this.#asked) {
      this.#asked = asked;
      this.task.start((signal) => this.#sweep({ query, ...options, top_k: DEPTH }, signal), DELAY);
    }
  }

  hide() {
    this.#asked = "";
    this.task.stop();
  }

  async #sweep(options, signal) {
    const columns = LAMBDAS.map((lambda) => ({ lambda, labels: [] }));
    const waiting = [...columns];
    let done = 0;
    const ask = async () => {
      for (let column = waiting.shift(); column; column = waiting.shift()) {
        const { json } = await send("predict", { body: { ...options, lambda: column.lambda }, signal });
        column.labels = json.labels;
        done += 1;
        this.status.textContent = `${done} of ${columns.length} lambdas`;
      }
    };
    await Promise.all(Array.from({ length: TOGETHER }, ask));
    this.#columns = columns;
    const near = resolve("a", this.facts.defaults).lambda;
    const closest = columns.reduce((one, other) => (Math.abs(other.lambda - near) < Math.abs(one.lambda - near) ? other : one));
    this.#selected = closest.labels[0]?.uid ?? null;
    this.status.textContent = `The emphasised label is the best one at lambda ${number(closest.lambda)}. Select another line to follow it.`;
    this.#draw();
  }

  #draw() {
    const width = Math.floor(this.chart.clientWidth);
    if (this.#columns.length === 0 || width === 0) {
      if (this.#columns.length === 0) this.chart.replaceChildren();
      return;
    }
    const select = (uid) => {
      this.#selected = uid;
      this.#draw();
    };
    const open = this.chart.querySelector("details")?.open ?? false;
    this.chart.replaceChildren(
      bumpChart(this.#columns, width, this.#selected, select),
      el("details", { open },
        el("summary", {}, "Ranks as a table"),
        el("div", { class: "scroll" }, ranksTable(this.#columns, this.#selected, select))),
    );
  }
}
