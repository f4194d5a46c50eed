// The description of the HTTP API: reads openapi.json, and shows each path with a form to try it.

import { Problem, send } from "./api.js";
import { el } from "./dom.js";
import { Task } from "./task.js";

const operations = document.getElementById("operations");

new Task(operations, document.getElementById("start")).start(async (signal) => {
  const { json: api } = await send("openapi.json", { signal });
  const found = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation, id: `${method}${path}` })));
  operations.replaceChildren(...found.map((each) => section(api, each)));
  document.getElementById("paths").replaceChildren(
    ...Object.entries(api.paths).map(([path, methods]) =>
      el("a", { href: `#${encodeURIComponent(`${Object.keys(methods)[0]}${path}`)}` }, path)));
  // The target of a link is known only now.
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
});

function section(api, { id, path, method, operation }) {
  const body = resolve(api, operation.requestBody?.content["application/json"]?.schema);
  return el("section", { class: "operation", id },
    el("h2", {}, el("span", { class: "method" }, method.toUpperCase()), path),
    el("p", {}, operation.description ?? operation.summary ?? ""),
    parametersTable(api, operation),
    body && fieldsTable(api, "Fields of the request", body, body.required),
    answerTable(api, operation),
    statusesTable(operation),
    tryForm(api, { path, method, operation, body }),
  );
}

/** Follow the reference of a schema. */
function resolve(api, schema) {
  const name = schema?.$ref?.split("/").at(-1);
  return name ? api.components.schemas[name] : schema;
}

function parametersTable(api, { parameters }) {
  if (!parameters) return null;
  const properties = Object.fromEntries(parameters.map(({ name, schema, description }) => [name, { ...schema, description }]));
  const required = parameters.filter((parameter) => parameter.required).map(({ name }) => name);
  return fieldsTable(api, "Parameters", { properties }, required);
}

function answerTable(api, operation) {
  const schema = resolve(api, operation.responses["200"]?.content?.["application/json"]?.schema);
  return schema?.properties && fieldsTable(api, "Fields of the answer", schema);
}

/** A table of the fields of a schema; the `required` fields come first. */
function fieldsTable(api, title, schema, required = []) {
  const first = ([one], [other]) => required.includes(other) - required.includes(one);
  const rows = Object.entries(schema.properties).sort(first).map(([name, field]) => el("tr", {},
    el("th", { scope: "row" }, el("code", {}, name), required.includes(name) && el("span", { class: "required" }, " required")),
    el("td", {}, typeOf(api, field)),
    el("td", {}, describe(field))));
  return el("div", {},
    el("h3", {}, title),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ...["Field", "Type", "Meaning"].map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, ...rows))));
}

function typeOf(api, field) {
  if (field.anyOf) return field.anyOf.filter((each) => each.type !== "null").map((each) => typeOf(api, each)).join(" or ");
  if (field.$ref) {
    const properties = resolve(api, field).properties;
    return properties ? `object: ${Object.keys(properties).join(", ")}` : "object";
  }
  if (field.type === "array") return `list of ${typeOf(api, field.items ?? {})}`;
  return [field.type ?? "any", bounds(field)].filter(Boolean).join(", ");
}

function bounds({ minimum, maximum }) {
  if (minimum === undefined && maximum === undefined) return "";
  if (maximum === undefined) return `at least ${minimum}`;
  return minimum === undefined ? `at most ${maximum}` : `${minimum} to ${maximum}`;
}

function describe(field) {
  const text = field.description ?? field.anyOf?.find((each) => each.description)?.description ?? "";
  const fallback = field.default === undefined || field.default === null ? "" : `default ${JSON.stringify(field.default)}`;
  return [text, fallback].filter(Boolean).join("; ");
}

function statusesTable(operation) {
  return el("div", {},
    el("h3", {}, "Statuses"),
    el("table", {}, el("tbody", {}, ...Object.entries(operation.responses).map(([status, { description }]) =>
      el("tr", {}, el("th", { scope: "row" }, el("code", {}, status)), el("td", {}, description))))));
}

/** A form that sends a request of this kind, and shows the answer. */
function tryForm(api, { path, method, operation, body }) {
  const parameters = (operation.parameters ?? []).map(({ name, in: part }) =>
    ({ name, part, field: el("input", { "aria-label": name, placeholder: name }) }));
  const content = body && el("textarea", { rows: 5, spellcheck: "false", "aria-label": "Body of the request" });
  if (content) content.value = JSON.stringify(example(api, body), null, 2);
  const slot = el("div", { "aria-live": "polite" });
  const task = new Task(slot, slot);
  const request = () => task.start(async (signal) => {
    const { status, text } = await answer(address(path, parameters), method, content?.value, signal);
    return () => slot.replaceChildren(el("p", { class: "small" }, `Status ${status}`), el("pre", { tabindex: "0" }, text));
  });
  return el("details", { class: "try" },
    el("summary", {}, "Try it"),
    ...parameters.map(({ field }) => field),
    content,
    el("p", { class: "actions" }, el("button", { type: "button", class: "primary", onclick: request }, "Send")),
    slot);
}

/** The address of a path with its parameters. Empty fields of the query string are left out. */
function address(path, parameters) {
  const query = new URLSearchParams();
  let filled = path.slice(1);
  for (const { name, part, field } of parameters) {
    if (part === "path") filled = filled.replace(`{${name}}`, () => encodeURIComponent(field.value));
    else if (field.value) query.set(name, field.value);
  }
  return [filled, ...(`${query}` ? [query] : [])].join("?");
}

/** Send a request; an error answer is shown like any other answer, except one that needs an API key. */
async function answer(address, method, body, signal) {
  try {
    const { status, json, text } = await send(address, { method: method.toUpperCase(), body, signal, anyFormat: true });
    return { status, text: json === undefined ? text : JSON.stringify(json, null, 2) };
  } catch (error) {
    if (!(error instanceof Problem) || [0, 401].includes(error.status)) throw error;
    return { status: error.status, text: error.detail };
  }
}

/** An example of a body: its required fields. */
function example(api, schema) {
  return Object.fromEntries((schema.required ?? []).map((name) => {
    const field = schema.properties[name];
    const one = (field.type === "array" ? field.items : field)?.examples?.[0] ?? "";
    return [name, field.type === "array" ? [one] : one];
  }));
}
