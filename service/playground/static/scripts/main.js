// The playground: loads the facts about the bundle, then connects the query, the options and the views.

import { send } from "./api.js";
import { count, el } from "./dom.js";
import { SettingsPanel } from "./parts/settings.js";
import { format, store } from "./state.js";
import { Task } from "./task.js";
import { AskView } from "./views/ask.js";
import { BundleView } from "./views/bundle.js";
import { CompareView } from "./views/compare.js";
import { ListView } from "./views/list.js";
import { SweepView } from "./views/sweep.js";

const EXAMPLES = 4;
const WITH_QUERY = ["ask", "sweep", "compare"];
const WITH_SIDE = ["ask", "sweep"];

const main = document.querySelector("main");
const query = document.getElementById("query");
const side = document.getElementById("side");
const section = (view) => document.getElementById(`view-${view}`);
const facts = {};
const page = { panels: [], views: null, shown: null };

// Words that are typed before the facts arrive are kept.
query.value = store.state.query;
query.addEventListener("input", () => store.update({ query: query.value, why: "" }));

const starting = new Task(main, document.getElementById("start"));
starting.start(loadFacts);
for (const event of ["version", "apikey"]) document.addEventListener(event, () => starting.start(loadFacts));

/** Load the facts at the start, and whenever another version answers or another API key is used. */
async function loadFacts(signal) {
  const [version, bundle] = await Promise.all([
    send("version", { signal }),
    send("playground/bundle", { signal }),
  ]);
  Object.assign(facts, version.json, bundle.json);
  main.toggleAttribute("data-writable", facts.writable);
  if (!page.views) connect();
  for (const panel of page.panels) panel.show();
  showEdition();
  showExamples();
  show({ detail: { origin: "start" } });
}

function connect() {
  page.panels = ["a", "b"].map((name) => new SettingsPanel(name, facts));
  page.views = {
    ask: new AskView(section("ask"), side, facts, (text) => askQuery(text, "ask")),
    sweep: new SweepView(section("sweep"), facts),
    compare: new CompareView(section("compare"), facts),
    list: new ListView(section("list"), facts, (text) => askQuery(text, "compare")),
    bundle: new BundleView(section("bundle"), facts),
  };
  store.addEventListener("change", show);
  // On a phone, the focus would open the keyboard.
  if (matchMedia("(pointer: fine)").matches && !query.value) query.focus();
  query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    page.views[store.state.view].show({ atOnce: true });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea")) return;
    event.preventDefault();
    query.focus();
  });
}

/** Show the state of the page: the view, the query and the options. */
function show({ detail: { origin } }) {
  const { state } = store;
  const entered = page.shown !== state.view;
  if (entered && page.shown) page.views[page.shown].hide();
  page.shown = state.view;
  for (const link of document.querySelectorAll("[data-view]")) {
    link.href = format({ ...state, view: link.dataset.view });
    if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const view of Object.keys(page.views)) section(view).hidden = view !== state.view;
  document.getElementById("question").hidden = !WITH_QUERY.includes(state.view);
  document.getElementById("examples").hidden = state.query !== "";
  side.hidden = !WITH_SIDE.includes(state.view);
  main.dataset.view = state.view;
  if (entered) placePanels();
  if (origin !== "page") for (const panel of page.panels) panel.show();
  if (query.value !== state.query) query.value = state.query;
  fitQuery();
  document.title = state.query ? `${state.query.slice(0, 60)} · Recollect` : "Recollect playground";
  page.views[state.view].show({ entered });
}

/** Move the panels of the settings into the view that is shown. */
function placePanels() {
  const shown = WITH_SIDE.includes(store.state.view) ? side : section(store.state.view);
  for (const panel of page.panels) shown.querySelector(`[data-settings=${panel.name}]`)?.append(panel.node);
}

function askQuery(text, view) {
  store.update({ query: text, why: "", view }, { push: true });
  query.focus();
  scrollTo({ top: 0 });
}

/** Make the field as high as its text. */
function fitQuery() {
  query.style.height = "auto";
  query.style.height = `${query.scrollHeight}px`;
}

function showExamples(start = 0) {
  const shown = facts.examples.slice(start, start + EXAMPLES);
  const next = start + EXAMPLES < facts.examples.length ? start + EXAMPLES : 0;
  document.getElementById("examples").replaceChildren(
    ...shown.map((text) => el("button", { type: "button", dir: "auto", onclick: () => askQuery(text, store.state.view) }, text)),
    el("button", { type: "button", class: "quiet", onclick: () => showExamples(next) }, "Other examples"),
  );
}

function showEdition() {
  document.getElementById("docs-link").hidden = !facts.docs;
  document.getElementById("edition").textContent =
    `Version ${facts.version} · ${count(facts.counts.instances, "training text")} · ${count(facts.counts.labels, "label")}`;
}
