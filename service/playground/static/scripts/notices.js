// Messages in place of an answer: a problem and its next step.

import { apiKey, setApiKey } from "./api.js";
import { el } from "./dom.js";

const TITLES = {
  0: "The service cannot be reached",
  403: "The change is not allowed",
  413: "The text is too long",
  422: "The service does not accept this request",
  429: "The limit of this API key is reached",
  503: "The service is not ready",
  504: "The answer took too long",
  507: "The memory is full",
};
const TITLES_BY_CODE = {
  overloaded: "The service is busy",
  draining: "This replica is stopping",
  log_unwritable: "The memory cannot be changed now",
  not_ready: "The service is starting",
  sequence_unknown: "This replica does not know your last change yet",
};

/** Show a problem in `slot`. `automatic` tells whether the page tries again by itself; `again` tries at once. */
export function showProblem(slot, problem, automatic, again) {
  if (problem.status === 401) {
    askForKey(slot);
    return;
  }
  const title = TITLES_BY_CODE[problem.code] ?? TITLES[problem.status] ?? "The service reports an error";
  const wait = Math.max(1, Math.round(problem.retrySeconds));
  slot.replaceChildren(
    el("div", { class: "notice" },
      el("h3", {}, title),
      el("p", {}, sentence(problem.detail)),
      automatic && el("p", { class: "small" }, `Next attempt in ${wait} s.`),
      el("button", { type: "button", onclick: again }, "Try now"),
    ),
  );
}

/** Show a message that is not an error. */
export function showMessage(slot, title, text) {
  slot.replaceChildren(el("div", { class: "notice calm" }, el("h3", {}, title), el("p", {}, text)));
}

/** Ask for an API key. A form that is shown already keeps a key that is typed at this moment. */
function askForKey(slot) {
  const title = apiKey() ? "The API key is not known" : "This service needs an API key";
  const shown = slot.querySelector("form.key");
  if (shown) {
    shown.querySelector("h3").textContent = title;
    const field = shown.querySelector("input");
    if (field.value.trim() === apiKey()) field.value = "";
    return;
  }
  const input = el("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key" });
  const submit = (event) => {
    event.preventDefault();
    setApiKey(input.value.trim());
  };
  slot.replaceChildren(
    el("form", { class: "notice key", onsubmit: submit },
      el("h3", {}, title),
      el("p", {}, "The key stays in this tab. It is forgotten when you close the tab."),
      el("div", { class: "field" }, input, el("button", { class: "primary" }, "Use this key")),
    ),
  );
  input.focus();
}

function sentence(text) {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}
