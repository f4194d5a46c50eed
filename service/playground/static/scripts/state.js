// The state of the page: the view, the query and two settings. The fragment of the URL holds it, so that a link shares
// it. Browsers do not send fragments to servers, so a query in a link is in no log.

export const VIEWS = ["ask", "sweep", "compare", "list", "bundle"];

// The options of a setting: their names in the API and in the URL, and their bounds in the API.
export const OPTIONS = [
  { name: "lambda", short: "lambda", least: 0, most: 1 },
  { name: "temperature", short: "tau", least: 1e-4, most: 100 },
  { name: "top_b", short: "b", least: 1, most: 10_000, whole: true },
  { name: "top_k", short: "k", least: 1, most: 1_000, whole: true },
];
// A longer list of queries is not put into the URL.
const MAX_LIST = 8_000;
const WRITE_DELAY = 250;

/** Read the state from the fragment of a URL; unknown fields and numbers out of range are ignored. */
export function parse(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const setting = (suffix) => {
    const chosen = {};
    for (const { name, short, least, most, whole } of OPTIONS) {
      const text = fields.get(short + suffix);
      const value = text ? Number(text) : NaN;
      if (value >= least && value <= most && (!whole || Number.isInteger(value))) chosen[name] = value;
    }
    return chosen;
  };
  const view = fields.get("view");
  return {
    view: VIEWS.includes(view) ? view : "ask",
    query: fields.get("q") ?? "",
    why: fields.get("why") ?? "",
    queries: fields.get("list") ?? "",
    a: setting(""),
    b: setting("2"),
  };
}

/** Write a state as the fragment of a URL. */
export function format(state) {
  const fields = new URLSearchParams();
  const put = (name, value) => value !== "" && value !== undefined && fields.set(name, value);
  put("view", state.view === "ask" ? "" : state.view);
  put("q", state.query);
  for (const [setting, suffix] of [[state.a, ""], [state.b, "2"]]) {
    for (const { name, short } of OPTIONS) put(short + suffix, setting[name]);
  }
  put("why", state.why);
  put("list", state.queries.length > MAX_LIST ? "" : state.queries);
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
      this.#tell("url");
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
    this.#tell("page");
  }

  #tell(origin) {
    this.dispatchEvent(new CustomEvent("change", { detail: { origin } }));
  }
}

export const store = new Store();
