// The state of the page: the view, the query, the group, the options and the selected label. The fragment of the URL holds it, so
// that a link shares it. Browsers do not send fragments to servers, so a query in a link is in no log.

// The options: their names in the API and in the URL, and their bounds in the API.
export const OPTIONS = [
  { name: "lambda", short: "lambda", least: 0, most: 1 },
  { name: "temperature", short: "tau", least: 1e-4, most: 100 },
  { name: "top_b", short: "b", least: 1, most: 10_000, whole: true },
  { name: "top_k", short: "k", least: 1, most: 1_000, whole: true },
];
// The fields of a label that the page shows.
const FIELDS = ["notation", "groups"];
const VIEWS = ["ask", "sweep", "bundle"];
const WRITE_DELAY = 250;

/** Read the state from the fragment of a URL; unknown fields and numbers out of range are ignored. */
function parse(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const options = {};
  for (const { name, short, least, most, whole } of OPTIONS) {
    const text = fields.get(short);
    const value = text ? Number(text) : NaN;
    if (value >= least && value <= most && (!whole || Number.isInteger(value))) options[name] = value;
  }
  const view = VIEWS.includes(fields.get("view")) ? fields.get("view") : "ask";
  const text = (name) => fields.get(name) ?? "";
  return { view, query: text("q"), group: text("group"), why: text("why"), options };
}

/** Write a state as the fragment of a URL. */
export function format({ view, query, group, why, options }) {
  const fields = new URLSearchParams();
  if (view !== "ask") fields.set("view", view);
  if (query) fields.set("q", query);
  if (group) fields.set("group", group);
  for (const { name, short } of OPTIONS) if (options[name] !== undefined) fields.set(short, options[name]);
  if (why) fields.set("why", why);
  return `#${fields}`;
}

class Store extends EventTarget {
  state = parse(location.hash);
  #timer;

  constructor() {
    super();
    addEventListener("popstate", () => {
      clearTimeout(this.#timer);
      this.state = parse(location.hash);
      this.dispatchEvent(new Event("change"));
    });
  }

  /** Change fields of the state. `push` adds an entry to the history, so that the Back button returns. */
  update(changes, { push = false } = {}) {
    this.state = { ...this.state, ...changes };
    clearTimeout(this.#timer);
    if (push) {
      history.pushState(null, "", format(this.state));
    } else {
      // Browsers limit the number of changes, so a moving slider must not cause one each time.
      this.#timer = setTimeout(() => history.replaceState(null, "", format(this.state)), WRITE_DELAY);
    }
    this.dispatchEvent(new Event("change"));
  }
}

export const store = new Store();

/** The options of the state that differ from the bundle's defaults: the fields of a request. */
export function chosenOptions(defaults) {
  return Object.fromEntries(Object.entries(store.state.options).filter(([name, value]) => value !== defaults[name]));
}

/** The filter of the state, as fields of a request. */
export function chosenFilter() {
  return store.state.group ? { where: { groups: [store.state.group] } } : {};
}

/** The fields of a request besides the query: options, filter, and the fields that labels of this version have. */
export function requestOptions({ defaults, fields }) {
  const shown = FIELDS.filter((name) => fields.includes(name));
  return { ...chosenOptions(defaults), ...chosenFilter(), ...(shown.length > 0 && { fields: shown }) };
}
