// A field that finds labels while you type, and offers to create one.

import { send } from "../api.js";
import { count, el } from "../dom.js";
import { Task } from "../task.js";

const TYPING_DELAY = 120;
const SHOWN = 8;

export class LabelSearch {
  #options = [];
  #chosen = -1;

  /** `onChoose(label)` is called with a label of the memory, `onCreate(text)` with the text of a new label. */
  constructor(place, onChoose, onCreate) {
    Object.assign(this, { place, onChoose, onCreate });
    this.field = place.querySelector("input");
    this.list = place.querySelector("[role=listbox]");
    this.status = place.querySelector("[role=status]");
    this.task = new Task(place, place.querySelector(".notice-slot"));
    this.field.addEventListener("input", () => this.#search());
    this.field.addEventListener("keydown", (event) => this.#onKey(event));
    this.field.addEventListener("blur", () => this.#close());
    // A press of the mouse must not take the focus from the field before the click.
    this.list.addEventListener("mousedown", (event) => event.preventDefault());
  }

  #search() {
    const text = this.field.value.trim();
    if (text === "") {
      this.task.stop();
      this.#close();
      return;
    }
    this.task.start(async (signal) => {
      const { json } = await send(`labels?${new URLSearchParams({ search: text, limit: SHOWN })}`, { signal });
      return () => this.#show(text, json.labels);
    }, TYPING_DELAY);
  }

  #show(text, labels) {
    const known = labels.some((label) => label.uid === text || label.text === text);
    this.#options = [
      ...labels.map((label) => this.#option(() => this.onChoose(label),
        el("span", { class: "label-text", dir: "auto" }, label.text || label.uid),
        label.uid !== label.text && el("span", { class: "label-uid" }, label.uid),
        el("span", { class: "small" }, count(label.training_count, "training text")))),
      ...(known ? [] : [this.#option(() => this.onCreate(text), el("span", { class: "label-text", dir: "auto" }, `Create the label “${text}”`))]),
    ];
    this.#options.forEach((option, place) => (option.id = `found-label-${place}`));
    this.list.replaceChildren(...this.#options);
    this.list.hidden = document.activeElement !== this.field;
    this.field.setAttribute("aria-expanded", String(!this.list.hidden));
    this.status.textContent = `${count(labels.length, "label")} found`;
    this.#mark(0);
  }

  #option(choose, ...parts) {
    const onclick = () => {
      this.field.value = "";
      this.#close();
      choose();
    };
    return el("li", { role: "option", "aria-selected": "false", onclick }, ...parts);
  }

  #onKey(event) {
    if (event.isComposing || this.list.hidden) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) this.#mark((this.#chosen + step + this.#options.length) % this.#options.length);
    else if (event.key === "Enter") this.#options[this.#chosen].click();
    else if (event.key === "Escape") this.#close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Mark the option that Enter chooses. The focus stays in the field, so that typing continues. */
  #mark(place) {
    this.#options[this.#chosen]?.setAttribute("aria-selected", "false");
    this.#chosen = place;
    this.#options[place].setAttribute("aria-selected", "true");
    this.#options[place].scrollIntoView({ block: "nearest" });
    this.field.setAttribute("aria-activedescendant", this.#options[place].id);
  }

  #close() {
    this.list.hidden = true;
    this.list.replaceChildren();
    this.#options = [];
    this.#chosen = -1;
    this.status.textContent = "";
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
  }
}
