// The list of labels with their scores as bars, their notations and groups, their thumbs, and the explanation of a score.

import { count, el, score, svg, table } from "./dom.js";

const SHOWN_TERMS = 12, SHOWN_GROUPS = 8;
const REMARKS = { label: "label text", correction: "judged as not relevant" };
// A hand with the thumb up, in a square of 20 units.
const HAND = "M3 9.5h3V17H3zM6 9.8l3.2-6.3c1.6-.1 2.5 1.2 2.1 2.7l-.7 2.6h4.9c1.1 0 1.9 1 1.6 2.1l-1.3 4.7C15.6 16.5 14.9 17 14 17H6";

export class LabelList {
  #rows = new Map();

  /**
   * `onSelect(uid)` is called when a label is selected, `onJudge(label, relevant)` when one is judged, and
   * `onFilter({ field, value })` when a notation or a group is chosen.
   */
  constructor(list, onSelect, onJudge, onFilter) {
    Object.assign(this, { list, onSelect, onJudge, onFilter });
  }

  /**
   * Show labels. A row that stays in the list keeps the focus.
   *
   * @param labels The labels of an answer.
   * @param bar The figure of a label that its bar shows.
   * @param judgement For a uid: true if the user has judged the label as relevant, false if as not relevant.
   * @param assigned The number of labels above the line of the labels to assign; undefined for no line.
   */
  show(labels, { bar, judgement, assigned }) {
    const most = Math.max(...labels.map(bar)) || 1;
    this.#rows = new Map(labels.map((label) => [label.uid, this.#rows.get(label.uid) ?? this.#row(label.uid)]));
    const nodes = labels.map((label) => {
      const row = this.#rows.get(label.uid);
      row.update(label, bar(label) / most, judgement(label.uid));
      return row.node;
    });
    if (assigned !== undefined && nodes.length > 0) nodes.splice(assigned, 0, assignLine(assigned));
    nodes.forEach((node, place) => {
      if (this.list.children[place] !== node) this.list.insertBefore(node, this.list.children[place] ?? null);
    });
    while (this.list.children.length > nodes.length) this.list.lastElementChild.remove();
  }

  /** The row of a label: its `node`, and the place `why` for the explanation. */
  row(uid) {
    return this.#rows.get(uid);
  }

  /** Mark the row of `uid` as open, and all others as closed. */
  open(uid) {
    for (const [each, { head, why }] of this.#rows) {
      head.setAttribute("aria-expanded", String(each === uid));
      why.hidden = each !== uid;
      if (each !== uid) why.replaceChildren();
    }
  }

  #row(uid) {
    const text = el("span", { class: "label-text", dir: "auto" });
    const code = el("span", { class: "small", dir: "auto" });
    const probability = el("span", { class: "probability figure", title: "Probability that the label is true" });
    const value = el("span", { class: "score figure" });
    const fill = el("i");
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, fill);
    const onclick = () => this.onSelect(uid);
    const head = el("button", { type: "button", class: "label-head", "aria-expanded": "false", onclick }, el("span", {}, text, " ", code), probability, value, bar);
    const filters = el("div", { class: "buttons", role: "group" });
    const why = el("div", { class: "why", hidden: true });
    const thumbs = el("span", { class: "thumbs", role: "group" });
    const update = (label, width, judgement) => {
      const name = label.name || uid;
      text.textContent = name;
      code.textContent = uid === name ? "" : uid;
      value.textContent = score(label.score);
      probability.textContent = label.probability === undefined ? "" : percent(label.probability);
      fill.style.width = `${100 * Math.min(1, width)}%`;
      thumbs.setAttribute("aria-label", `Judge ${name}`);
      for (const thumb of [up, down]) thumb.show(name, judgement);
      const listed = label.groups ?? [];
      const button = (field, value, title) => filterButton(value, () => this.onFilter({ field, value }), title);
      filters.hidden = !label.notation && listed.length === 0;
      filters.setAttribute("aria-label", `Notation and groups of ${name}`);
      filters.replaceChildren(
        label.notation ? button("notation", label.notation, "Notation: show only labels with it") : "",
        ...listed.slice(0, SHOWN_GROUPS).map((group) => button("groups", group, "Group: show only its labels")),
        el("span", { class: "small" }, listed.length > SHOWN_GROUPS ? `${listed.length - SHOWN_GROUPS} more` : ""));
    };
    const up = thumb(true, () => this.onJudge({ uid, name: text.textContent }, true));
    const down = thumb(false, () => this.onJudge({ uid, name: text.textContent }, false));
    thumbs.append(up.node, down.node);
    return { node: el("li", {}, el("div", { class: "row" }, head, thumbs), filters, why), head, why, update };
  }
}

function percent(share) {
  return share > 0 && share < 0.005 ? "<1%" : `${(100 * share).toFixed(0)}%`;
}

/** A button that chooses a value of a filter, or removes it. */
export function filterButton(value, onclick, title) {
  return el("button", { type: "button", class: "chip", dir: "auto", title, onclick }, value);
}

/** A button that judges a label as relevant or as not relevant; one that is pressed already undoes this. */
function thumb(relevant, onclick) {
  const meaning = relevant ? "relevant" : "not relevant";
  const hand = svg("path", { d: HAND, transform: relevant ? "" : "rotate(180 10 10)" });
  const node = el("button", { type: "button", class: "thumb", onclick }, svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, hand));
  const show = (name, judgement) => {
    const pressed = judgement === relevant;
    node.setAttribute("aria-pressed", String(pressed));
    node.setAttribute("aria-label", `${name}: ${meaning}`);
    node.title = pressed ? `Undo: ${meaning}` : `The label is ${meaning} to your text`;
  };
  return { node, show };
}

function assignLine(assigned) {
  const text = assigned === 0 ? "Assign no label" : `Assign ${assigned === 1 ? "this label" : `these ${count(assigned, "label")}`}`;
  return el("li", { class: "assign-line" }, text);
}

/** Show the votes that add up to `label.score` in `place`, and the terms by which the label has its place. `onAsk(text)` asks a training text as a query. */
export function showWhy(place, label, onAsk) {
  const terms = [...label.because].sort((one, other) => other.share - one.share);
  const sum = terms.reduce((total, term) => total + term.share, 0);
  const list = el("ul", { class: "terms" });
  const show = (shown) => list.replaceChildren(...terms.slice(0, shown).map((term) => termRow(term, terms[0].share, onAsk)));
  show(SHOWN_TERMS);
  const rest = terms.length - SHOWN_TERMS;
  const onclick = (event) => {
    show(terms.length);
    event.target.remove();
  };
  place.replaceChildren(
    label.text === label.name ? "" : el("p", { class: "small", dir: "auto" }, `Text of the label: ${label.text}`),
    el("p", { class: "small" }, introduction(terms)),
    list,
    rest > 0 ? el("button", { type: "button", onclick }, `Show ${count(rest, "more vote")}`) : "",
    el("p", { class: "sum small" }, `Sum of the votes ${sum.toFixed(4)} · score ${label.score.toFixed(4)}`),
    ...whyThisPlace(label.ranked_by ?? []),
  );
}

/** The terms of a ranker, and that of the order macro. */
function whyThisPlace(terms) {
  const tail = terms.find((term) => term.feature === "tail_weight");
  const logit = terms.filter((term) => term !== tail);
  const rows = logit.map(({ feature, value, log_odds }) => [feature.replaceAll("_", " "), value ?? "–", log_odds]);
  return [
    tail ? el("p", { class: "macro small" },
      `Labels with few training texts move up. This label has ${count(tail.value, "training text")}, so the order counts ` +
      `${percent(Math.exp(tail.log_odds))} of its probability.`) : "",
    logit.length > 0 ? el("details", {},
      el("summary", { class: "small" }, `Why the label has this place: ${count(logit.length, "measure")}`),
      table(["Measure", "Value", "Log-odds"], rows)) : "",
  ];
}

function introduction(terms) {
  const number = (kind) => terms.filter((term) => term.kind === kind).length;
  const voters = [
    number("instance") && count(number("instance"), "training text"),
    number("label") && "the text of the label",
  ].filter(Boolean);
  const lowered = number("correction") ? ` ${count(number("correction"), "judgement")} lowered the score.` : "";
  const hint = number("instance") ? " Select a training text to use it as the query." : "";
  return `Votes for this label: ${voters.join(" and ")}.${lowered}${hint}`;
}

function termRow(term, most, onAsk) {
  const fill = el("i", { class: term.kind });
  fill.style.width = `${Math.max(0, (100 * term.share) / (most || 1))}%`;
  const text = term.kind === "instance"
    ? el("button", { type: "button", class: "link", dir: "auto", onclick: () => onAsk(term.text) }, term.text)
    : el("span", { dir: "auto" }, term.text);
  const remarks = [REMARKS[term.kind], term.by === "words" && "shares words with your text"].filter(Boolean);
  return el("li", {},
    el("span", { class: "figure" }, score(term.share)),
    el("div", {}, text, el("span", { class: "small" }, remarks.map((remark) => ` ${remark}`).join(" ·"))),
    el("span", { class: "bar", "aria-hidden": "true" }, fill));
}
