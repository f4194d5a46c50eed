// The sliders of one setting. A slider and a number field show the same option.

import { el, number } from "../dom.js";
import { OPTIONS, store } from "../state.js";

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
const STEPS = 400;

/**
 * The full values of a setting: the chosen ones, and the bundle's defaults for the others. Setting B begins with lambda
 * 0, a plain dual encoder, so that it differs from setting A.
 */
export function resolve(name, defaults) {
  const base = name === "a" ? defaults : { ...defaults, lambda: defaults.lambda === 0 ? 1 : 0 };
  return { ...base, ...store.state[name] };
}

/** The options of a setting that differ from the bundle's defaults: the fields of a request. */
export function requestOptions(name, defaults) {
  const values = resolve(name, defaults);
  return Object.fromEntries(Object.entries(values).filter(([option, value]) => value !== defaults[option]));
}

/** The panel of setting "a" or "b". */
export class SettingsPanel {
  #rows = new Map();

  constructor(name, facts) {
    Object.assign(this, { name, facts });
    this.reset = el("button", { type: "button", class: "quiet", onclick: () => this.#write({}) }, "Reset");
    for (const option of OPTIONS) this.#rows.set(option.name, this.#row(option));
    const body = [...this.#rows.values()].map((row) => row.node);
    this.node = el("details", { class: "settings", open: matchMedia("(min-width: 60rem)").matches },
      el("summary", {}, el("span", {}, "Options"), (this.summary = el("span", { class: "small" }))),
      el("div", { class: "options" }, ...body),
      el("p", { class: "actions" }, this.reset),
    );
    this.show();
  }

  /** Show the values of the setting; `source` is the field or slider that the reader uses now. */
  show(source) {
    const values = resolve(this.name, this.facts.defaults);
    for (const option of OPTIONS) {
      const { slider, field, hint } = this.#rows.get(option.name);
      const value = values[option.name];
      if (slider !== source) slider.value = STEPS * SLIDERS[option.name].scale.place(value);
      if (field !== source) field.value = String(rounded(value));
      slider.setAttribute("aria-valuetext", number(value));
      hint.textContent = `${SLIDERS[option.name].hint}; default ${number(this.facts.defaults[option.name])}`;
    }
    this.summary.textContent = OPTIONS.map(({ name, short }) => `${short} ${number(values[name])}`).join(" · ");
    this.reset.hidden = Object.keys(store.state[this.name]).length === 0;
  }

  #row(option) {
    const { title, scale } = SLIDERS[option.name];
    const id = `${this.name}-${option.name}`;
    const fromSlider = () => this.#choose(option, scale.value(slider.value / STEPS), slider);
    const slider = el("input", {
      type: "range", id, min: 0, max: STEPS, step: 1, "aria-describedby": `${id}-hint`, oninput: fromSlider,
    });
    const field = el("input", {
      type: "number", min: option.least, max: option.most, step: option.whole ? 1 : "any", class: "value",
      "aria-label": `${title}, exact value`,
      oninput: () => field.validity.valid && field.value !== "" && this.#choose(option, Number(field.value), field),
      onblur: () => this.show(),
    });
    const hint = el("p", { id: `${id}-hint`, class: "small" });
    const node = el("div", { class: "option", "data-option": option.name },
      el("label", { for: id }, title),
      field,
      slider,
      hint,
    );
    return { node, slider, field, hint };
  }

  #choose(option, value, source) {
    const bounded = Math.min(option.most, Math.max(option.least, option.whole ? Math.round(value) : rounded(value)));
    this.#write({ ...store.state[this.name], [option.name]: bounded }, source);
  }

  #write(setting, source) {
    const own = Object.entries(setting).filter(([option, value]) => this.name === "b" || value !== this.facts.defaults[option]);
    store.update({ [this.name]: Object.fromEntries(own) });
    this.show(source);
  }
}

function rounded(value) {
  return Number(value.toPrecision(3));
}
