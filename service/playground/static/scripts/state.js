// The state of the page: the view, the query, the filter, the options and the selected label. The fragment of the URL holds
// it, so that a link shares it. Browsers do not send fragments to servers, so a query in a link is in no log.

// The names of the options in the API, and in the URL.
const OPTIONS = { lambda: "lambda", temperature: "tau", top_b: "b", top_k: "k", order: "order", rerank: "rerank" };
// The fields by which the page filters labels, in words. An answer has the name of each label, and the others if a request
// names them.
export const FIELDS = { name: "name", notation: "notation", groups: "group" };
const VIEWS = ["ask", "balance", "about"];
const WRITE_DELAY = 250;

/** Read the state from the fragment of a URL; unknown fields are ignored. */
function parse(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const text = (name) => fields.get(name) ?? "";
  const options = {};
  for (const [name, short] of Object.entries(OPTIONS)) if (fields.has(short)) options[name] = valueOf(text(short));
  const view = VIEWS.includes(text("view")) ? text("view") : "ask";
  const filter = Object.hasOwn(FIELDS, text("field")) && text("is") ? { field: text("field"), value: text("is") } : null;
  return { view, query: text("q") || text("query"), filter, why: text("why"), options };
}

/** The number, the boolean or the text that stands in a URL. */
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Write a state as the fragment of a URL. */
export function format({ view, query, filter, why, options }) {
  const fields = new URLSearchParams();
  if (view !== "ask") fields.set("view", view);
  if (query) fields.set("q", query);
  if (filter) fields.set("field", filter.field);
  if (filter) fields.set("is", filter.value);
  for (const [name, short] of Object.entries(OPTIONS)) if (options[name] !== undefined) fields.set(short, options[name]);
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

/** The options of the state that differ from the bundle's defaults. Values that the version refuses are ignored. */
export function chosenOptions(facts) {
  const differs = ([name, value]) => allows(facts, name, value) && value !== facts.defaults[name];
  return Object.fromEntries(Object.entries(store.state.options).filter(differs));
}

function allows(facts, name, value) {
  const { type, minimum, maximum } = facts.options[name];
  if (name === "order") return possibleOrders(facts).includes(value);
  if (name === "rerank" && !facts.rerank) return false;
  if (type === "boolean") return typeof value === "boolean";
  return typeof value === "number" && value >= minimum && value <= maximum && (type !== "integer" || Number.isInteger(value));
}

/** The orders that the version allows. All but its default and the votes need probabilities; macro needs a tail weight. */
export function possibleOrders({ defaults, options, probabilities }) {
  return options.order.enum.filter((each) =>
    each === "score" || each === defaults.order || (probabilities && (each !== "macro" || defaults.tail_weight !== null)));
}

/** Whether the options of the state change the votes. Then there are no probabilities, and labels are in order of score. */
export function votesChange(facts) {
  return Object.keys(chosenOptions(facts)).some((name) => facts.options[name].changes_votes);
}

/** The order of the labels in an answer. The service orders by probability if a cross-encoder reads the labels. */
export function chosenOrder(facts) {
  if (votesChange(facts)) return "score";
  const { order, rerank } = chosenOptions(facts);
  return order ?? (rerank && facts.defaults.order === "score" ? "probability" : facts.defaults.order);
}

/** The fields by which labels of this version can be filtered. */
export function filterFields({ fields }) {
  return Object.keys(FIELDS).filter((name) => fields.includes(name));
}

/** The filter of the state, as fields of a request. */
function chosenFilter() {
  const { filter } = store.state;
  return filter ? { where: { [filter.field]: [filter.value] } } : {};
}

/** The fields of a request besides the query: options, filter, and the fields that labels of this version have. */
export function requestOptions(facts) {
  const { order, rerank, ...options } = chosenOptions(facts);
  const shown = filterFields(facts).filter((name) => name !== "name");
  return {
    ...options,
    ...(order !== undefined && !votesChange(facts) && { order }),
    ...(rerank !== undefined && chosenOrder(facts) !== "score" && { rerank }),
    ...chosenFilter(),
    ...(shown.length > 0 && { fields: shown }),
  };
}
