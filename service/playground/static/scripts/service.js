// Requests to the service, and the problems that it reports. The API key stays in this tab: it is in the tab's session
// storage, and never in a URL.

import { el } from "./dom.js";

const KEY = "recollect-api-key";
// A longer wait is shown, but not waited for.
const MAX_RETRY_SECONDS = 30;

/** An error answer of the service. `retrySeconds` is undefined if a second attempt cannot help. */
export class Problem extends Error {
  constructor(status, title, detail, retrySeconds) {
    super(detail);
    Object.assign(this, { status, title, detail, retrySeconds });
  }
}

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Send a request. Return the answer's JSON, its stages in milliseconds, and the milliseconds until it arrived. */
export async function send(path, { body, signal, method = body === undefined ? "GET" : "POST" } = {}) {
  const headers = { "Content-Type": "application/json", ...(apiKey() && { "X-API-Key": apiKey() }) };
  const start = performance.now();
  let response, text;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "The service cannot be reached", `No answer from ${location.host}.`, 3);
  }
  const milliseconds = performance.now() - start;
  const json = parse(text);
  if (!response.ok || json === undefined) throw problemOf(response, json);
  announceVersion(response.headers.get("X-Index-Version"));
  return { json, stages: readStages(response.headers.get("Server-Timing") ?? ""), milliseconds };
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function problemOf(response, json) {
  const wait = Number(response.headers.get("Retry-After") ?? NaN);
  const again = [429, 502, 503].includes(response.status) ? (Number.isFinite(wait) ? wait : 3) : undefined;
  const detail = json?.detail ?? "The answer has no reason.";
  return new Problem(response.status, json?.title ?? `Status ${response.status}`, detail, again);
}

/** Read `encode;dur=3.2, search;dur=0.4` as a list of [stage, milliseconds]. */
function readStages(header) {
  return [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(([, stage, spent]) => [stage, Number(spent)]);
}

let seen = null;

/** Tell the page that another version answers now. */
function announceVersion(version) {
  if (version !== null && seen !== null && version !== seen) document.dispatchEvent(new Event("version"));
  seen = version ?? seen;
}

/** Work that a newer request replaces: the earlier requests are cancelled, and a problem is shown and tried again. */
export class Task {
  #controller = new AbortController();
  #timer;

  /** `region` is marked as busy during the work; problems appear in `slot`. */
  constructor(region, slot) {
    Object.assign(this, { region, slot });
  }

  /**
   * Stop the previous work; start `work(signal)` after `delay` milliseconds. If the work returns a function, this function
   * may write into the slot.
   */
  start(work, delay = 0) {
    this.stop();
    const controller = new AbortController();
    this.#controller = controller;
    this.#timer = setTimeout(() => this.#run(work, controller), delay);
  }

  stop() {
    clearTimeout(this.#timer);
    this.#controller.abort();
    this.region.removeAttribute("aria-busy");
  }

  async #run(work, { signal }) {
    this.region.setAttribute("aria-busy", "true");
    try {
      const finish = await work(signal);
      if (signal.aborted) return;
      this.slot.replaceChildren();
      this.region.removeAttribute("data-failed");
      finish?.();
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Problem)) throw error;
      this.#showAndRetry(error, work, signal);
    } finally {
      if (!signal.aborted) this.region.removeAttribute("aria-busy");
    }
  }

  #showAndRetry(problem, work, signal) {
    const again = () => this.start(work);
    this.region.setAttribute("data-failed", "");
    const automatic = problem.retrySeconds <= MAX_RETRY_SECONDS;
    if (automatic) this.#timer = setTimeout(again, 1000 * Math.max(1, problem.retrySeconds));
    if (problem.status === 401) document.addEventListener("apikey", again, { signal, once: true });
    if (problem.status === 0) addEventListener("online", again, { signal, once: true });
    if (problem.status === 401) askForKey(this.slot);
    else showProblem(this.slot, problem, automatic, again);
  }
}

function showProblem(slot, problem, automatic, again) {
  const detail = problem.detail.trim();
  const wait = Math.max(1, Math.round(problem.retrySeconds));
  slot.replaceChildren(el("div", { class: "notice" },
    el("h3", {}, problem.title),
    el("p", {}, detail.charAt(0).toUpperCase() + detail.slice(1) + (/[.!?]$/.test(detail) ? "" : ".")),
    automatic && el("p", { class: "small" }, `Next attempt in ${wait} s.`),
    el("button", { type: "button", onclick: again }, "Try now"),
  ));
}

/** Ask for an API key. A form that is shown already keeps a key that is typed at this moment. */
function askForKey(slot) {
  const title = apiKey() ? "The API key is not known" : "This service needs an API key";
  const shown = slot.querySelector("form");
  if (shown) {
    shown.querySelector("h3").textContent = title;
    const field = shown.querySelector("input");
    if (field.value.trim() === apiKey()) field.value = "";
    return;
  }
  const input = el("input", { type: "password", autocomplete: "off", required: true, "aria-label": "API key" });
  const onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, input.value.trim());
    document.dispatchEvent(new Event("apikey"));
  };
  slot.replaceChildren(el("form", { class: "notice", onsubmit },
    el("h3", {}, title),
    el("p", {}, "The key stays in this tab. It is forgotten when you close the tab."),
    el("div", { class: "row" }, input, el("button", {}, "Use this key")),
  ));
  input.focus();
}
