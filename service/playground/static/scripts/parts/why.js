// The explanation of one score: the votes of training texts and of the label's own text.

import { count, el, score } from "../dom.js";

const SHOWN = 12;
const REMARKS = { label: "label text", correction: "judged as not relevant" };

/** Show the terms of `label.score` in `place`. `onAsk(text)` asks a training text as a query. */
export function showWhy(place, label, onAsk) {
  const terms = [...label.because].sort((one, other) => other.share - one.share);
  const sum = terms.reduce((total, term) => total + term.share, 0);
  const list = el("ul", { class: "terms" });
  const show = (shown) => list.replaceChildren(...terms.slice(0, shown).map((term) => row(term, terms[0].share, onAsk)));
  show(SHOWN);
  const rest = terms.length - SHOWN;
  const more = rest > 0 && el("button", { type: "button", class: "quiet" }, `Show ${count(rest, "more vote")}`);
  if (more) more.addEventListener("click", () => (show(terms.length), more.remove()));
  place.replaceChildren(
    el("p", { class: "small" }, introduction(terms)),
    stack(terms, sum),
    list,
    more || "",
    el("p", { class: "sum small" }, `Sum of the votes ${sum.toFixed(4)} · score ${label.score.toFixed(4)}`),
  );
}

function introduction(terms) {
  const number = (kind) => terms.filter((term) => term.kind === kind).length;
  const parts = [];
  if (number("instance")) parts.push(count(number("instance"), "training text"));
  if (number("label")) parts.push("the label's own text");
  const corrections = number("correction");
  const lowered = corrections ? ` ${count(corrections, "judgement")} lowered the score.` : "";
  return `${parts.join(" and ")} voted for this label.${lowered} Select a training text to use it as the query.`;
}

function stack(terms, sum) {
  const bar = el("div", { class: "stack", "aria-hidden": "true" });
  for (const term of terms) {
    const piece = el("i", { class: term.kind, title: `${score(term.share)}  ${term.text}` });
    piece.style.width = `${(100 * term.share) / (sum || 1)}%`;
    bar.append(piece);
  }
  return bar;
}

function row(term, most, onAsk) {
  const fill = el("i", { class: term.kind });
  fill.style.width = `${Math.max(0, (100 * term.share) / (most || 1))}%`;
  const text = term.kind === "instance"
    ? el("button", { type: "button", class: "ask", dir: "auto", onclick: () => onAsk(term.text) }, term.text)
    : el("span", { dir: "auto" }, term.text);
  const remarks = [REMARKS[term.kind], term.by === "words" && "shares words with your text"].filter(Boolean);
  return el("li", {}, el("span", { class: "score" }, score(term.share)),
    el("div", {}, text, el("span", { class: "label-uid" }, remarks.map((remark) => ` ${remark}`).join(" ·"))),
    el("span", { class: "bar", "aria-hidden": "true" }, fill));
}
