// The view of one query: its labels, their explanations, the time and the request.

import { count, el } from "./dom.js";
import { LabelList, showWhy } from "./labels.js";
import { Problem, Task, apiKey, send } from "./service.js";
import { chosenOptions, chosenOrder, requestOptions, store } from "./state.js";
import { Feedback, LabelSearch } from "./writing.js";

const TYPING_DELAY = 150;
const STAGES = {
  cache: "answer cache",
  queue: "wait for a thread",
  words: "word search",
  search: "vector search",
  rank: "rank labels",
  rerank: "read again",
  combine: "combine votes",
};

export class AskView {
  #asked = "";
  #explained = { request: "", labels: null };
  #explaining = null;

  constructor(section, side, facts, askQuery, chooseFilter) {
    Object.assign(this, { section, facts, askQuery });
    this.status = section.querySelector(".status");
    this.headings = section.querySelector(".headings");
    this.intro = section.querySelector(".intro");
    this.slot = section.querySelector(".notice-slot");
    this.adding = section.querySelector(".add-label");
    this.timing = side.querySelector("#timing");
    this.share = side.querySelector("#share");
    const judge = (label, relevant) => this.feedback.judge(store.state.query, label, relevant);
    this.labels = new LabelList(section.querySelector(".labels"), (uid) => this.#select(uid), judge, chooseFilter);
    this.feedback = new Feedback(section.querySelector(".judged"), () => this.show({ atOnce: true }));
    new LabelSearch(this.adding, (label) => judge(label, true), (text) => this.feedback.create(store.state.query, text));
    this.task = new Task(section, this.slot);
    connectShare(this.share, () => this.#request());
    section.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && store.state.why) this.#select(store.state.why);
    });
  }

  #request() {
    return { query: store.state.query, ...requestOptions(this.facts) };
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
    const empty = request.query.trim() === "";
    this.intro.hidden = !empty;
    this.adding.hidden = empty;
    if (empty) {
      this.hide();
      this.#show("", []);
      this.slot.replaceChildren();
      this.status.textContent = "";
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

  async #answer(request, signal) {
    const answer = await this.#send(request, signal);
    const { labels, truncated, reranked } = answer.json;
    this.#show(request.query, labels);
    showTiming(this.timing, answer);
    this.share.hidden = false;
    this.status.textContent = [
      `${count(labels.length, "label")} in ${answer.milliseconds.toFixed(0)} ms`,
      ...(chosenOrder(this.facts) === "macro" ? ["Labels with few training texts move up"] : []),
      ...(reranked === false ? ["The second model was left out"] : []),
      ...(truncated ? ["The text is longer than the encoder reads; its end was ignored"] : []),
    ].join(" · ");
    this.#explain();
    // With a cross-encoder, a second request would take as long again.
    const { rerank } = { ...this.facts.defaults, ...chosenOptions(this.facts) };
    if (!rerank && labels.some((label) => label.probability !== undefined)) await this.#showAssigned(request, labels, signal);
    if (labels.length > 0) return undefined;
    return () => this.slot.replaceChildren(el("div", { class: "notice" },
      el("h3", {}, "No label"),
      el("p", {}, "No text in the memory that is near your text votes for a label. In Options, move the first slider towards label texts, or let more texts vote.")));
  }

  /** Draw a line below the labels that the service would assign, if these are the first ones. */
  async #showAssigned({ top_k, ...request }, labels, signal) {
    try {
      const { json } = await this.#send({ ...request, assign: true }, signal);
      const uids = new Set(json.labels.map((label) => label.uid));
      const first = labels.slice(0, uids.size).filter((label) => uids.has(label.uid));
      if (first.length === uids.size) this.#show(request.query, labels, uids.size);
    } catch (error) {
      if (!(error instanceof Problem)) throw error; // without an assigned set, there is no line
    }
  }

  /**
   * Show the labels, with bars of the figure that orders them. If the row with the focus is gone, for example after a
   * judgement, Undo gets the focus.
   */
  #show(query, labels, assigned) {
    const focused = document.activeElement;
    const known = labels.length > 0 && labels.every((label) => label.probability !== undefined);
    const byProbability = known && chosenOrder(this.facts) !== "score";
    this.headings.hidden = labels.length === 0;
    this.headings.firstElementChild.hidden = !known;
    this.labels.show(labels, {
      bar: (label) => (byProbability ? label.probability : label.score),
      judgement: (uid) => this.feedback.judgement(query, uid),
      assigned,
    });
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

/** Show the stages of the header `Server-Timing`, and the rest of the measured time. */
function showTiming(section, { stages, milliseconds }) {
  const spent = stages.reduce((total, [, time]) => total + time, 0);
  const all = Math.max(milliseconds, spent) || 1; // stages that run at the same time can add up to more
  const shown = [...stages, ["network and HTTP", Math.max(0, milliseconds - spent)]];
  section.querySelector("dl").replaceChildren(...shown.map(([stage, time]) => {
    const fill = el("i");
    fill.style.width = `${(100 * time) / all}%`;
    return el("div", {},
      el("dt", {}, STAGES[stage] ?? stage),
      el("dd", { class: "figure" }, `${time.toFixed(time < 10 ? 2 : 0)} ms`),
      el("dd", { class: "bar", "aria-hidden": "true" }, fill));
  }));
  section.hidden = false;
}

/** Connect the button that copies the current request as a command; `request()` returns its body. */
function connectShare(section, request) {
  const status = section.querySelector("[role=status]");
  const text = section.querySelector("pre");
  section.querySelector("button").addEventListener("click", async () => {
    text.textContent = [
      `curl ${new URL("predict", document.baseURI).href} -H 'Content-Type: application/json' \\`,
      ...(apiKey() ? [`     -H "X-API-Key: $RECOLLECT_API_KEY" \\`] : []), // the name of a variable instead of the key
      `     -d '${JSON.stringify(request()).replaceAll("'", String.raw`'\''`)}'`,
    ].join("\n");
    text.hidden = false;
    try {
      await navigator.clipboard.writeText(text.textContent);
      status.textContent = "Copied.";
    } catch {
      // Browsers allow it on HTTPS and on this computer only.
      getSelection().selectAllChildren(text);
      status.textContent = "The text is selected. Copy it with your keyboard.";
    }
  });
}
