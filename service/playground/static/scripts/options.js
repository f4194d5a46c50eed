// The panel of options. A slider and a number field show the same option.

import { el, number } from "./dom.js";
import { OPTIONS, chosenOptions, store } from "./state.js";

const STEPS = 400;
// A scale maps the place of a slider, from 0 to 1, to a value and back.
const logarithmic = (least, most) => ({
  value: (place) => least * (most / least) ** place,
  place: (value) => Math.log(value / least) / Math.log(most / least),
});
const linear = (least, most) => ({
  value: (place) => least + place * (most - least),
  place: (value) => (value - least) / (most - least),
});
// Nearly logarithmic for small values, and 0 at place 0: the middle of the slider is 0.09.
const logarithmicFromZero = {
  value: (place) => (100 ** place - 1) / 99,
  place: (value) => Math.log(99 * value + 1) / Math.log(100),
};
// The range of a slider can be smaller than the range of its number field.
const SLIDERS = {
  lambda: { title: "Lambda", hint: "label texts ↔ training texts", scale: logarithmicFromZero },
  temperature: { title: "Tau", hint: "only the nearest ↔ all alike", scale: logarithmic(0.001, 1) },
  top_b: { title: "b", hint: "texts and labels that vote", scale: logarithmic(1, 10_000) },
  top_k: { title: "k", hint: "labels in the answer", scale: linear(1, 100) },
};

export class OptionsPanel {
  constructor(place, facts) {
    this.facts = facts;
    this.rows = OPTIONS.map((option) => this.#row(option));
    this.summary = el("span", { class: "small" });
    this.reset = el("button", { type: "button", onclick: () => store.update({ options: {} }) }, "Reset");
    place.replaceChildren(el("details", { open: matchMedia("(min-width: 60rem)").matches },
      el("summary", {}, el("h3", {}, "Options"), " ", this.summary),
      ...this.rows.map((row) => row.node),
      this.reset,
    ));
  }

  /** Show the values; the field or slider that the reader uses now keeps its own. */
  show() {
    const { defaults } = this.facts;
    const values = { ...defaults, ...store.state.options };
    for (const { option, slider, field, hint } of this.rows) {
      const { hint: meaning, scale } = SLIDERS[option.name];
      const value = values[option.name];
      if (slider !== document.activeElement) slider.value = STEPS * scale.place(value);
      if (field !== document.activeElement) field.value = String(rounded(value));
      slider.setAttribute("aria-valuetext", number(value));
      hint.textContent = `${meaning}; default ${number(defaults[option.name])}`;
    }
    this.summary.textContent = OPTIONS.map(({ name, short }) => `${short} ${number(values[name])}`).join(" · ");
    this.reset.hidden = Object.keys(chosenOptions(defaults)).length === 0;
  }

  #row(option) {
    const { name, least, most, whole } = option;
    const { title, scale } = SLIDERS[name];
    const choose = (value) => {
      const bounded = Math.min(most, Math.max(least, whole ? Math.round(value) : rounded(value)));
      store.update({ options: chosenOptionsWith(name, bounded, this.facts.defaults) });
    };
    const slider = el("input", {
      type: "range", id: name, min: 0, max: STEPS, "aria-describedby": `${name}-hint`,
      oninput: () => choose(scale.value(slider.value / STEPS)),
    });
    const field = el("input", {
      type: "number", min: least, max: most, step: whole ? 1 : "any", "aria-label": `${title}, exact value`,
      oninput: () => field.validity.valid && field.value !== "" && choose(Number(field.value)),
      onblur: () => this.show(),
    });
    const hint = el("p", { id: `${name}-hint`, class: "small" });
    const node = el("div", { class: "option", "data-option": name }, el("label", { for: name }, title), field, slider, hint);
    return { option, node, slider, field, hint };
  }
}

function chosenOptionsWith(name, value, defaults) {
  const { [name]: replaced, ...others } = store.state.options;
  return value === defaults[name] ? others : { ...others, [name]: value };
}

function rounded(value) {
  return Number(value.toPrecision(3));
}
