// The panel of options and of the filter. A slider and a number field show the same option.

import { el, number } from "./dom.js";
import { FIELDS, chosenOptions, chosenOrder, filterFields, possibleOrders, store, votesChange } from "./state.js";

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
// Bounds, values and descriptions of options come from the service. The range of a slider can be smaller than the bounds.
const CONTROLS = {
  lambda: { title: "Label texts ↔ training texts", scale: logarithmicFromZero },
  temperature: { title: "Only the nearest ↔ all alike", scale: logarithmic(0.001, 1) },
  top_b: { title: "Texts and labels that vote", scale: logarithmic(1, 10_000) },
  top_k: { title: "Labels in the answer", scale: linear(1, 100) },
  order: { title: "Order of the labels" },
  rerank: { title: "A second model reads the best labels again" },
};
const ORDERS = { score: "by votes", probability: "by probability", macro: "rare labels move up" };

export class OptionsPanel {
  constructor(place, facts) {
    this.facts = facts;
    this.rows = Object.keys(CONTROLS).map((name) => ({ name, ...this.#control(name) }));
    this.summary = el("span", { class: "small" });
    this.filter = this.#filter();
    this.reset = el("button", { type: "button", onclick: () => store.update({ options: {} }) }, "Reset");
    place.replaceChildren(el("details", {},
      el("summary", {}, el("h3", {}, "Options"), " ", this.summary),
      ...this.rows.map((each) => each.node),
      this.filter.node,
      this.reset,
    ));
  }

  /** Show the values; the control that the reader uses now keeps its own. */
  show() {
    const { facts } = this;
    const chosen = chosenOptions(facts);
    const values = { ...facts.defaults, ...chosen };
    for (const { show, name } of this.rows) show(values[name]);
    const changed = Object.keys(chosen).length;
    this.summary.textContent = changed ? `${changed} changed` : "";
    this.reset.hidden = changed === 0;
    this.filter.show();
  }

  #choose(name, value) {
    const { [name]: replaced, ...others } = store.state.options;
    store.update({ options: value === this.facts.defaults[name] ? others : { ...others, [name]: value } });
  }

  /** A row of the panel: the title in words, the controls, and the name in the API with the default. */
  #row(name, control, ...more) {
    control.id = name;
    control.setAttribute("aria-describedby", `${name}-hint`);
    const hint = el("p", { id: `${name}-hint`, class: "small" });
    const label = el("label", { for: name, title: this.facts.options[name].description }, CONTROLS[name].title);
    return { hint, node: el("div", { class: "option", "data-option": name }, label, ...more, control, hint) };
  }

  #control(name) {
    const { type, enum: values } = this.facts.options[name];
    if (values) return this.#select(name);
    return type === "boolean" ? this.#checkbox(name) : this.#slider(name);
  }

  #slider(name) {
    const { title, scale } = CONTROLS[name];
    const { minimum, maximum, type } = this.facts.options[name];
    const whole = type === "integer";
    const choose = (value) => this.#choose(name, Math.min(maximum, Math.max(minimum, whole ? Math.round(value) : rounded(value))));
    const slider = el("input", { type: "range", min: 0, max: STEPS, oninput: () => choose(scale.value(slider.value / STEPS)) });
    const field = el("input", {
      type: "number", min: minimum, max: maximum, step: whole ? 1 : "any", "aria-label": `${title}, exact value`,
      oninput: () => field.validity.valid && field.value !== "" && choose(Number(field.value)),
      onblur: () => this.show(),
    });
    const { node, hint } = this.#row(name, slider, field);
    const show = (value) => {
      if (slider !== document.activeElement) slider.value = STEPS * scale.place(value);
      if (field !== document.activeElement) field.value = String(rounded(value));
      slider.setAttribute("aria-valuetext", number(value));
      hint.textContent = `${name}, default ${number(this.facts.defaults[name])}`;
    };
    return { node, show };
  }

  #select(name) {
    const select = el("select", { onchange: () => this.#choose(name, select.value) });
    const { node, hint } = this.#row(name, select);
    const show = () => {
      const possible = possibleOrders(this.facts);
      const { rerank } = chosenOptions(this.facts); // not together with the order by votes
      select.replaceChildren(...possible.map((each) =>
        el("option", { value: each, disabled: each === "score" && rerank }, ORDERS[each] ?? each)));
      select.value = chosenOrder(this.facts);
      select.disabled = votesChange(this.facts);
      hint.textContent = select.disabled ? "by votes, because an option above is changed" : `${name}, default ${ORDERS[this.facts.defaults[name]]}`;
      node.hidden = possible.length < 2;
    };
    return { node, show };
  }

  #checkbox(name) {
    const box = el("input", { type: "checkbox", onchange: () => this.#choose(name, box.checked) });
    const { node, hint } = this.#row(name, box);
    const show = (value) => {
      box.checked = value;
      box.disabled = votesChange(this.facts) || chosenOptions(this.facts).order === "score";
      hint.textContent = box.disabled ? "not if votes order the labels" : `${name}, slower`;
      node.hidden = !this.facts.rerank;
    };
    return { node, show };
  }

  /** The filter: a field of labels, and the value that labels must have. */
  #filter() {
    const choose = () => store.update({ filter: input.value === "" ? null : { field: select.value, value: input.value } }, { push: true });
    const select = el("select", { "aria-label": "Field of the filter", onchange: () => input.value !== "" && choose() });
    const input = el("input", { id: "filter-value", type: "text", dir: "auto", autocomplete: "off", spellcheck: "false", onchange: choose });
    const node = el("div", { class: "option" }, el("label", { for: "filter-value" }, "Only labels with the"), select, input);
    const show = () => {
      const fields = filterFields(this.facts);
      const { filter } = store.state;
      node.hidden = fields.length === 0;
      const field = filter?.field ?? select.value;
      select.replaceChildren(...fields.map((each) => el("option", { value: each }, FIELDS[each])));
      if (filter || fields.includes(field)) select.value = field;
      if (input !== document.activeElement) input.value = filter?.value ?? "";
    };
    return { node, show };
  }
}

function rounded(value) {
  return Number(value.toPrecision(3));
}
