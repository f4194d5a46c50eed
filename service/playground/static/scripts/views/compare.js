// The view of one query with two settings side by side.

import { send } from "../api.js";
import { count } from "../dom.js";
import { LabelList, overlap, rankChanges } from "../parts/answers.js";
import { requestOptions } from "../parts/settings.js";
import { store } from "../state.js";
import { Task } from "../task.js";

const DELAY = 150;

export class CompareView {
  #asked = "";

  constructor(section, facts) {
    Object.assign(this, { section, facts });
    this.status = section.querySelector(".status");
    this.a = new LabelList(section.querySelector("[data-side=a]"));
    this.b = new LabelList(section.querySelector("[data-side=b]"));
    this.task = new Task(section, section.querySelector(".notice-slot"));
  }

  show() {
    const { query } = store.state;
    const bodies = ["a", "b"].map((name) => ({ query, ...requestOptions(name, this.facts.defaults) }));
    const asked = JSON.stringify([bodies, this.facts.version]);
    if (query.trim() === "") {
      this.hide();
      this.a.clear();
      this.b.clear();
      this.status.textContent = "Type a text above to compare its labels.";
    } else if (asked !== this.#asked) {
      this.#asked = asked;
      this.task.start((signal) => this.#compare(bodies, signal), DELAY);
    }
  }

  hide() {
    this.#asked = "";
    this.task.stop();
  }

  async #compare(bodies, signal) {
    const answers = await Promise.all(bodies.map((body) => send("predict", { body, signal })));
    const [a, b] = answers.map((answer) => answer.json.labels);
    const most = Math.max(a[0]?.score ?? 0, b[0]?.score ?? 0) || 1;
    const onlyInA = new Map([...rankChanges(b, a, "only in A")].filter(([, mark]) => mark?.kind === "only"));
    this.a.show(a, { most, marks: onlyInA });
    this.b.show(b, { most, marks: rankChanges(a, b, "only in B") });
    this.status.textContent = summary(a, b);
  }
}

function summary(a, b) {
  const shared = overlap(a, b);
  const same = a[0] && a[0].uid === b[0]?.uid ? "The best label is the same" : "The best labels differ";
  return `${count(shared, "label")} in both answers, ${a.length - shared} only in A, ${b.length - shared} only in B. ${same}.`;
}
