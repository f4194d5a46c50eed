// Changes of the memory: judgements of labels, new labels, the undo of the last change, and the search among all labels.

import { count, el } from "./dom.js";
import { Task, send } from "./service.js";

const SHOWN_CHARACTERS = 60;
const TYPING_DELAY = 120;
const SHOWN_LABELS = 8;

export class Feedback {
  #judgements = new Map(); // by query and label
  #undo = null;

  /** `place` shows the last change and its undo; `changed()` is called after each change and each undo. */
  constructor(place, changed) {
    Object.assign(this, { place, changed, sequence: 0 });
    this.message = place.querySelector(".change p");
    this.button = place.querySelector(".change button");
    this.task = new Task(place, place.querySelector(".notice-slot"));
    this.button.addEventListener("click", () => this.#write(this.#undo));
  }

  /** The judgement of a label that this tab has made for a query: true, false, or undefined for none. */
  judgement(query, uid) {
    return this.#judgements.get(name(query, uid))?.relevant;
  }

  /** Judge a label. The same judgement a second time undoes the first one; the opposite one replaces it. */
  judge(query, label, relevant) {
    const key = name(query, label.uid);
    const judge = async (signal) => {
      if (this.#judgements.has(key)) (await this.#retract(key, signal))();
      const { json } = await send("feedback", { body: { query, label: label.uid, relevant }, signal });
      return () => {
        this.#judgements.set(key, { relevant, id: json.id });
        const message = `${quote(label.name || label.uid)} is ${relevant ? "" : "not "}relevant to ${quote(query)}.`;
        this.#show(json.sequence, message, (later) => this.#retract(key, later));
      };
    };
    const isUndo = this.judgement(query, label.uid) === relevant;
    return this.#write(isUndo ? (signal) => this.#retract(key, signal) : judge);
  }

  /** Undo a judgement. */
  async #retract(key, signal) {
    const { json } = await send(`feedback/${encodeURIComponent(this.#judgements.get(key).id)}`, { method: "DELETE", signal });
    return () => {
      this.#judgements.delete(key);
      this.#show(json.sequence, "The judgement is undone.");
    };
  }

  /** Create a label, and make the query its first training text. Both are one change, so there is never half of it. */
  create(query, text) {
    const uid = `playground-${randomId()}`;
    const instances = [{ uid, text: query, labels: [text] }];
    return this.#write(async (signal) => {
      const { json } = await send("memory/instances", { body: { instances, create_labels: true }, signal });
      return () => this.#show(json.sequence, `${quote(text)} is a new label of ${quote(query)}.`, (later) => this.#uncreate(uid, text, later));
    });
  }

  /** Remove a created label with its training text; keep the label if it has other training texts by now. */
  async #uncreate(uid, label, signal) {
    const { json: known } = await send(`labels/${encodeURIComponent(label)}`, { signal });
    const path = known.training_count > 1 ? `memory/instances/${encodeURIComponent(uid)}` : `memory/labels/${encodeURIComponent(label)}`;
    const { json } = await send(path, { method: "DELETE", signal });
    return () => this.#show(json.sequence, `${quote(label)} is removed.`);
  }

  /** Start a change; one that waits for its answer is not interrupted, because the service may have made it. */
  #write(work) {
    if (!this.place.hasAttribute("aria-busy")) this.task.start(work);
  }

  #show(sequence, message, undo = null) {
    this.sequence = sequence;
    this.#undo = undo;
    this.message.textContent = message;
    this.button.hidden = undo === null;
    this.changed();
  }
}

/** A field that finds labels while you type, and offers to create one. */
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
      const { json } = await send(`labels?${new URLSearchParams({ search: text, limit: SHOWN_LABELS })}`, { signal });
      return () => this.#show(text, json.labels);
    }, TYPING_DELAY);
  }

  #show(text, labels) {
    const known = labels.some((label) => [label.uid, label.text, label.name].includes(text));
    this.#options = [
      ...labels.map((label) => this.#option(() => this.onChoose(label),
        el("span", { class: "label-text", dir: "auto" }, label.name || label.uid),
        label.uid !== label.name && el("span", { class: "small" }, label.uid),
        el("span", { class: "small figure" }, count(label.training_count, "training text")))),
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

function name(query, uid) {
  return JSON.stringify([query, uid]);
}

function randomId() {
  // `crypto.randomUUID` is missing on pages without HTTPS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function quote(text) {
  return `“${text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text}”`;
}
