// Where the time of a request went, as one stacked bar.

import { el } from "../dom.js";

const TITLES = {
  cache: "answer cache",
  queue: "wait for a thread",
  tokenize: "tokenize",
  encode: "encode",
  words: "word search",
  search: "vector search",
  rank: "rank labels",
  combine: "combine votes",
  rest: "network and HTTP",
};

/** Show the stages of the header `Server-Timing`, and the rest of the measured time. */
export function showTiming(section, { stages, milliseconds }) {
  const spent = stages.reduce((total, [, time]) => total + time, 0);
  const shown = [...stages, ["rest", Math.max(0, milliseconds - spent)]];
  const total = shown.reduce((sum, [, time]) => sum + time, 0) || 1;
  const bar = section.querySelector(".stages");
  bar.replaceChildren(...shown.map(([stage, time]) => {
    const piece = el("i", { class: `stage stage-${stage}`, title: `${TITLES[stage] ?? stage} ${time.toFixed(2)} ms` });
    piece.style.width = `${(100 * time) / total}%`;
    return piece;
  }));
  section.querySelector(".legend").replaceChildren(...shown.map(([stage, time]) =>
    el("div", {},
      el("dt", {}, el("i", { class: `stage stage-${stage}`, "aria-hidden": "true" }), TITLES[stage] ?? stage),
      el("dd", {}, `${time.toFixed(time < 10 ? 2 : 0)} ms`)),
  ));
  section.hidden = false;
}
