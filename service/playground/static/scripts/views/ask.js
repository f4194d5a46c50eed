// The view of one query: its labels, their explanations, the time and the request.

import { Problem, send } from "../api.js";
import { count } from "../dom.js";
import { showMessage } from "../notices.js";
import { LabelList } from "../parts/answers.js";
import { Feedback } from "../parts/feedback.js";
import { LabelSearch } from "../parts/label-search.js";
import { requestOptions } from "../parts/settings.js";
import { connectShare } from "../parts/share.js";
import { showTiming } from "../parts/timing.js";
import { showWhy } from "../parts/why.js";
import { store } from "../state.js";
import { Task } from "../task.js";

const TYPING_DELAY = 150;

export class AskView {
  #asked = "";
  #explained = { request: "", labels: null };
  #explaining = null;

  constructor(section, side, facts, askQuery) {
    Object.assign(this, { section, facts, askQuery });
    this.status = section.querySelector(".status");
    this.headings = section.querySelector(".headings");
    this.intro = section.querySelector(".intro");
    this.slot = section.querySelector(".notice-slot");
    this.timing = side.querySelector("#timing");
    this.share = side.querySelector("#share");
    this.labels = new LabelList(section.querySelector(".labels"), (uid) => this.#select(uid),
      (label, relevant) => this.feedback.judge(store.state.query, label, relevant));
    this.feedback = new Feedback(section.querySelector(".judged"), () => this.show({ atOnce: true }));
    this.adding = section.querySelector(".add-label");
    new LabelSearch(this.adding, (label) => this.feedback.judge(store.state.query, label, true),
      (text) => this.feedback.create(store.state.query, text));
    this.task = new Task(section, this.slot);
    connectShare(this.share, () => this.#request());
    section.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && store.state.why) this.#select(store.state.why);
    });
  }

  #request() {
    return { query: store.state.query, ...requestOptions("a", this.facts.defaults) };
  }

  /** Send a request that knows the last change of this tab. */
  #send(request, signal) {
    const { sequence } = this.feedback;
    return send("predict", { body: sequence ? { ...request, min_sequence: sequence } : request, signal });
  }

  /** Answer the current query, if it or the options have changed. */
  show({ atOnce = false } = {}) {
    const request = this.#request();
    const asked = JSON.stringify(request);
    this.intro.hidden = request.query.trim() !== "";
    this.adding.hidden = request.query.trim() === "";
    if (request.query.trim() === "") {
      this.#clear();
    } else if (asked !== this.#asked || atOnce) {
      this.#asked = asked;
      this.task.start((signal) => this.#answer(request, signal), atOnce ? 0 : TYPING_DELAY);
    } else {
      this.#explain();
    }
  }

  hide() {
    this.task.stop();
    this.#explaining?.stop();
    this.#asked = "";
    this.timing.hidden = this.share.hidden = true;
  }

  #clear() {
    this.#asked = "";
    this.task.stop();
    this.labels.clear();
    this.headings.hidden = true;
    this.slot.replaceChildren();
    this.status.textContent = "";
    this.timing.hidden = this.share.hidden = true;
  }

  async #answer(request, signal) {
    const answer = await this.#send(request, signal);
    const { labels, truncated } = answer.json;
    this.#show(request.query, labels);
    showTiming(this.timing, answer);
    this.share.hidden = false;
    this.status.textContent = [
      `${count(labels.length, "label")} in ${answer.milliseconds.toFixed(0)} ms`,
      ...(truncated ? ["The text is longer than the encoder reads; its end was ignored"] : []),
    ].join(" · ");
    this.#explain();
    if (labels.some((label) => label.probability !== undefined)) await this.#showAssigned(request.query, labels, signal);
    if (labels.length > 0) return undefined;
    return () => showMessage(this.slot, "No label",
      "No text in the memory that is near your text votes for a label. Move lambda towards 0, or increase b.");
  }

  /** Draw a line below the labels that the service would assign. */
  async #showAssigned(query, labels, signal) {
    try {
      const { json } = await this.#send({ query, assign: true }, signal);
      const uids = new Set(json.labels.map((label) => label.uid));
      this.#show(query, labels, { assigned: labels.filter((label) => uids.has(label.uid)).length });
    } catch (error) {
      if (!(error instanceof Problem)) throw error; // without an assigned set, there is no line
    }
  }

  /** Show the labels, with bars of the figure that orders them. If the row with the focus is gone, for example after a judgement, Undo gets the focus. */
  #show(query, labels, options) {
    const focused = document.activeElement;
    const known = labels.length > 0 && labels.every((label) => label.probability !== undefined);
    const bar = known && this.facts.defaults.order === "probability" ? { bar: (label) => label.probability } : {};
    this.headings.hidden = labels.length === 0;
    this.headings.firstElementChild.hidden = !known;
    this.labels.show(labels, { judgement: (uid) => this.feedback.judgement(query, uid), ...bar, ...options });
    if (document.activeElement !== focused) (focused.isConnected ? focused : this.feedback.button).focus();
  }

  #select(uid) {
    store.update({ why: store.state.why === uid ? "" : uid });
  }

  /** Open the explanation of the label `why`, if it is among the labels. */
  #explain() {
    const uid = store.state.why;
    const row = this.labels.row(uid);
    this.labels.open(row ? uid : "");
    this.#explaining?.stop();
    if (!row) return;
    const request = { ...this.#request(), explain: true };
    this.#explaining = new Task(row.node, row.why);
    this.#explaining.start(async (signal) => {
      const label = (await this.#explanations(request, signal)).find((each) => each.uid === uid);
      return () => label && showWhy(row.why, label, this.askQuery);
    });
  }

  async #explanations(request, signal) {
    const name = JSON.stringify([this.facts.version, this.feedback.sequence, request]);
    if (this.#explained.request !== name) {
      const { json } = await this.#send(request, signal);
      this.#explained = { request: name, labels: json.labels };
    }
    return this.#explained.labels;
  }
}
