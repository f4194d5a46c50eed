// The current request as a command, as a program and as a link.

import { apiKey } from "../api.js";
import { format, store } from "../state.js";

const COPIED_SECONDS = 4;

/** Connect the buttons of the section; `request()` returns the body of the current request. */
export function connectShare(section, request) {
  const status = section.querySelector("[role=status]");
  const text = section.querySelector("pre");
  let timer;
  for (const button of section.querySelectorAll("button")) {
    button.addEventListener("click", async () => {
      const { language } = button.dataset;
      text.textContent = writers[language](request());
      text.hidden = false;
      status.textContent = (await copy(text)) ? "Copied." : "The text is selected. Copy it with your keyboard.";
      clearTimeout(timer);
      timer = setTimeout(() => (status.textContent = ""), 1000 * COPIED_SECONDS);
    });
  }
}

const address = () => new URL("predict", document.baseURI).href;

const writers = {
  curl: (body) => [
    `curl ${address()} -H 'Content-Type: application/json' \\`,
    ...(apiKey() ? [`     -H "X-API-Key: $RECOLLECT_API_KEY" \\`] : []),
    `     -d '${JSON.stringify(body).replaceAll("'", String.raw`'\''`)}'`,
  ].join("\n"),
  Python: (body) => [
    "import json",
    ...(apiKey() ? ["import os"] : []),
    "import urllib.request",
    "",
    `body = ${pythonDict(body)}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(address())},`,
    "    json.dumps(body).encode(),",
    apiKey()
      ? `    {"Content-Type": "application/json", "X-API-Key": os.environ["RECOLLECT_API_KEY"]},`
      : `    {"Content-Type": "application/json"},`,
    ")",
    "with urllib.request.urlopen(request) as response:",
    `    for label in json.load(response)["labels"]:`,
    `        print(f"{label['score']:.3f}  {label['text']}")`,
  ].join("\n"),
  link: () => new URL(format(store.state), location.href).href,
};

// Strings and numbers are written alike in JSON and in Python.
function pythonDict(body) {
  return `{${Object.entries(body).map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`).join(", ")}}`;
}

/** Copy the text of an element. Browsers allow this on HTTPS and on this computer; otherwise the text is selected. */
async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return false;
  }
}
