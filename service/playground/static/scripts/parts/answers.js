// A list of labels with their scores as bars.

import { arrange, count, el, percent, score } from "../dom.js";
import { Thumbs } from "./thumbs.js";

/**
 * The labels of one answer. `onSelect(uid)` is called when a label is selected; without it, labels are plain rows.
 * `onJudge(label, relevant)` is called when a label is judged; without it, labels have no thumbs.
 */
export class LabelList {
  #rows = new Map();

  constructor(list, onSelect, onJudge) {
    Object.assign(this, { list, onSelect, onJudge });
  }

  /**
   * Show labels.
   *
   * @param labels The labels of an answer.
   * @param bar The figure of a label that its bar shows.
   * @param most The figure whose bar has the full width.
   * @param marks For some uids, a remark such as a change of rank.
   * @param judgement For a uid: true if the user has judged the label as relevant, false if as not relevant.
   * @param assigned The number of labels above the line of the labels to assign; undefined for no line.
   */
  show(labels, { bar = (label) => label.score, most = Math.max(...labels.map(bar)), marks = new Map(), judgement = () => undefined, assigned } = {}) {
    const kept = new Map();
    for (const label of labels) kept.set(label.uid, this.#rows.get(label.uid) ?? this.#row(label));
    this.#rows = kept;
    const nodes = labels.map((label) => {
      const row = kept.get(label.uid);
      row.update(label, Math.min(1, bar(label) / (most || 1)), marks.get(label.uid));
      row.thumbs?.show(label.text || label.uid, judgement(label.uid));
      return row.node;
    });
    if (assigned !== undefined && labels.length > 0) nodes.splice(assigned, 0, assignLine(assigned));
    arrange(this.list, nodes);
  }

  clear() {
    this.#rows.clear();
    this.list.replaceChildren();
  }

  /** The row of a label: its `node`, and the place `why` for the explanation. */
  row(uid) {
    return this.#rows.get(uid);
  }

  /** Mark the row of `uid` as open, and all others as closed. */
  open(uid) {
    for (const [each, row] of this.#rows) {
      row.head.setAttribute("aria-expanded", String(each === uid));
      row.why.hidden = each !== uid;
      if (each !== uid) row.why.replaceChildren();
    }
  }

  #row(label) {
    const text = el("span", { class: "label-text", dir: "auto" });
    const uid = el("span", { class: "label-uid" });
    const mark = el("span", { class: "mark", role: "img" });
    const probability = el("span", { class: "probability" });
    const value = el("span", { class: "score" });
    const fill = el("i");
    const parts = [text, uid, mark, probability, value, el("span", { class: "bar", "aria-hidden": "true" }, fill)];
    const why = el("div", { class: "why", hidden: true });
    const head = this.onSelect
      ? el("button", { type: "button", class: "label-head", "aria-expanded": "false" }, ...parts)
      : el("div", { class: "label-head" }, ...parts);
    if (this.onSelect) head.addEventListener("click", () => this.onSelect(label.uid));
    const thumbs = this.onJudge && new Thumbs((relevant) => this.onJudge(label, relevant));
    const update = (shown, width, remark) => {
      text.textContent = shown.text || shown.uid;
      uid.textContent = shown.uid === shown.text ? "" : shown.uid;
      value.textContent = score(shown.score);
      probability.textContent = shown.probability === undefined ? "" : percent(shown.probability);
      probability.title = shown.probability === undefined ? "" : "Probability that the label is true";
      mark.textContent = remark?.text ?? "";
      mark.className = `mark ${remark?.kind ?? ""}`;
      mark.setAttribute("aria-label", remark?.meaning ?? "");
      mark.hidden = !remark;
      fill.style.width = `${100 * width}%`;
    };
    return { node: el("li", {}, el("div", { class: "label-row" }, head, thumbs?.node), why), head, why, thumbs, update };
  }
}

function assignLine(assigned) {
  const text = assigned === 0 ? "Assign no label" : `Assign ${assigned === 1 ? "this label" : `these ${count(assigned, "label")}`}`;
  return el("li", { class: "assign-line" }, el("span", {}, text));
}

/**
 * For each label of `after`, its change of rank against `before`, as remarks for `LabelList.show`; `absent` is the remark
 * for labels that only `after` has.
 */
export function rankChanges(before, after, absent) {
  const places = new Map(before.map((label, rank) => [label.uid, rank]));
  return new Map(after.map((label, rank) => {
    const earlier = places.get(label.uid);
    if (earlier === undefined) return [label.uid, { text: absent, kind: "only", meaning: absent }];
    if (earlier === rank) return [label.uid, undefined];
    const steps = Math.abs(earlier - rank);
    const ranks = count(steps, "rank");
    return [label.uid, earlier > rank
      ? { text: `▲ ${steps}`, kind: "up", meaning: `${ranks} higher` }
      : { text: `▼ ${steps}`, kind: "down", meaning: `${ranks} lower` }];
  }));
}

/** The number of labels that two answers share. */
export function overlap(one, other) {
  const uids = new Set(one.map((label) => label.uid));
  return other.filter((label) => uids.has(label.uid)).length;
}
