// Two buttons that judge a label: relevant to the query, or not.

import { el, svg } from "../dom.js";

// A hand with the thumb up, in a square of 20 units.
const HAND = "M3 9.5h3V17H3zM6 9.8l3.2-6.3c1.6-.1 2.5 1.2 2.1 2.7l-.7 2.6h4.9c1.1 0 1.9 1 1.6 2.1l-1.3 4.7C15.6 16.5 14.9 17 14 17H6";

export class Thumbs {
  /** `onJudge(relevant)` is called when a button is pressed; a button that is pressed already is a request to undo. */
  constructor(onJudge) {
    this.up = button("", () => onJudge(true));
    this.down = button("rotate(180 10 10)", () => onJudge(false));
    this.node = el("span", { class: "thumbs", role: "group" }, this.up, this.down);
  }

  /** Show the judgement of a label: true for relevant, false for not relevant, undefined for none. */
  show(text, judgement) {
    for (const [node, relevant, meaning] of [[this.up, true, "relevant"], [this.down, false, "not relevant"]]) {
      const pressed = judgement === relevant;
      node.setAttribute("aria-pressed", String(pressed));
      node.setAttribute("aria-label", `${text}: ${meaning}`);
      node.title = pressed ? `Undo: ${meaning}` : `The label is ${meaning} to your text`;
    }
    this.node.setAttribute("aria-label", `Judge ${text}`);
  }
}

function button(transform, onclick) {
  const hand = svg("path", { d: HAND, transform });
  return el("button", { type: "button", class: "thumb", onclick }, svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, hand));
}
