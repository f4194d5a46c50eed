// The playground: loads the facts about the bundle, then connects the query, the options and the views.

import { AboutView } from "./about.js";
import { AskView } from "./ask.js";
import { BalanceView } from "./balance.js";
import { count, el } from "./dom.js";
import { filterButton } from "./labels.js";
import { OptionsPanel } from "./options.js";
import { Task, send } from "./service.js";
import { FIELDS, format, store } from "./state.js";

const EXAMPLES = 4;

const main = document.querySelector("main");
const query = document.getElementById("query");
const side = document.getElementById("side");
const filter = document.getElementById("filter");
const section = (view) => document.getElementById(`view-${view}`);
const facts = {};
let panel, views, shown;

// Words that are typed before the facts arrive are kept.
query.value = store.state.query;
query.addEventListener("input", () => store.update({ query: query.value, why: "" }));

const starting = new Task(main, document.getElementById("start"));
starting.start(loadFacts);
for (const event of ["version", "apikey"]) document.addEventListener(event, () => starting.start(loadFacts));

/** Load the facts at the start, and whenever another version answers or another API key is used. */
async function loadFacts(signal) {
  const [version, bundle] = await Promise.all([send("version", { signal }), send("playground/bundle", { signal })]);
  Object.assign(facts, version.json, bundle.json);
  main.toggleAttribute("data-writable", facts.writable);
  if (!views) connect();
  document.getElementById("docs-link").hidden = !facts.docs;
  document.getElementById("edition").textContent =
    `Version ${facts.version} · ${count(facts.counts.instances, "training text")} · ${count(facts.counts.labels, "label")}`;
  showExamples();
  show();
}

function connect() {
  panel = new OptionsPanel(document.getElementById("options"), facts);
  views = {
    ask: new AskView(section("ask"), side, facts, askQuery, chooseFilter),
    balance: new BalanceView(section("balance"), facts),
    about: new AboutView(section("about"), facts),
  };
  store.addEventListener("change", show);
  // On a phone, the focus would open the keyboard.
  if (matchMedia("(pointer: fine)").matches && !query.value) query.focus();
  query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    views[store.state.view].show({ atOnce: true });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea")) return;
    event.preventDefault();
    query.focus();
  });
}

/** Show the state of the page: the view, the query and the options. */
function show() {
  const { state } = store;
  if (shown && shown !== state.view) views[shown].hide();
  shown = state.view;
  for (const link of document.querySelectorAll("[data-view]")) {
    link.href = format({ ...state, view: link.dataset.view });
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const view of Object.keys(views)) section(view).hidden = view !== state.view;
  document.getElementById("question").hidden = side.hidden = state.view === "about";
  document.getElementById("examples").hidden = state.query !== "";
  main.className = state.view;
  if (query.value !== state.query) query.value = state.query;
  showFilter(state.filter);
  // Make the field as high as its text.
  query.style.height = "auto";
  query.style.height = `${query.scrollHeight}px`;
  document.title = state.query ? `${state.query.slice(0, 60)} · Recollect` : "Recollect playground";
  panel.show();
  views[state.view].show();
}

function askQuery(text) {
  store.update({ query: text, why: "" }, { push: true });
  query.focus();
  scrollTo({ top: 0 });
}

/** Admit only the labels with a value in a field; null admits all. */
function chooseFilter(chosen) {
  store.update({ filter: chosen }, { push: true });
  (chosen ? filter.querySelector("button") : query).focus();
}

function showFilter(chosen) {
  filter.hidden = chosen === null;
  if (chosen === null) return;
  const button = filterButton(chosen.value, () => chooseFilter(null), "Show all labels");
  button.append(el("span", { "aria-hidden": "true" }, " ×"));
  filter.replaceChildren(el("span", { class: "small" }, `Only labels with the ${FIELDS[chosen.field]}`), button);
}

function showExamples(start = 0) {
  const next = start + EXAMPLES < facts.examples.length ? start + EXAMPLES : 0;
  document.getElementById("examples").replaceChildren(
    ...facts.examples.slice(start, start + EXAMPLES).map((text) =>
      el("button", { type: "button", dir: "auto", onclick: () => askQuery(text) }, text)),
    el("button", { type: "button", class: "link", onclick: () => showExamples(next) }, "Other examples"),
  );
}
