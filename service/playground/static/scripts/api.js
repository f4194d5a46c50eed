// Requests to the service. The API key stays in this tab: it is in the tab's session storage, and never in a URL.

const KEY = "recollect-api-key";

/** An error answer of the service. `retrySeconds` is undefined if a second attempt cannot help. */
export class Problem extends Error {
  constructor(status, code, detail, retrySeconds) {
    super(detail);
    Object.assign(this, { status, code, detail, retrySeconds });
  }
}

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  sessionStorage.setItem(KEY, key);
  document.dispatchEvent(new Event("apikey"));
}

/**
 * Send a request, and return the answer's text and JSON, its stages in milliseconds, and the milliseconds until it arrived.
 * An answer that is not JSON is a problem, except with `anyFormat`.
 */
export async function send(path, { body, signal, anyFormat = false, method = body === undefined ? "GET" : "POST" } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (apiKey()) headers["X-API-Key"] = apiKey();
  const start = performance.now();
  let response, text;
  try {
    const content = typeof body === "string" || body === undefined ? body : JSON.stringify(body);
    response = await fetch(path, { method, headers, body: content, signal, cache: "no-store" });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "offline", `No answer from ${location.host}.`, 3);
  }
  const milliseconds = performance.now() - start;
  const json = parse(text);
  if (!response.ok) throw problemOf(response, json);
  if (json === undefined && !anyFormat) throw new Problem(response.status, "not_json", "The answer is not JSON.");
  const stages = readStages(response.headers.get("Server-Timing") ?? "");
  announceVersion(response.headers.get("X-Index-Version"));
  return { json, text, stages, milliseconds, status: response.status };
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
  return new Problem(response.status, json?.code ?? "error", json?.detail ?? response.statusText, again);
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
