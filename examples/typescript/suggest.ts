// Asks a running service for the labels of a query, and prints them.
//
//     npm ci && npm run types && npm run check && npm start -- "compute the square root of a number"
//
// RECOLLECT_URL is the address of the service, RECOLLECT_API_KEY its API key if it needs one.

import createClient from "openapi-fetch";
import type { components, paths } from "./recollect.js";

type Problem = components["schemas"]["Problem"];

const query = process.argv[2];
if (query === undefined) {
  console.error("expected a query, found none: npm start -- QUERY");
  process.exit(2);
}

const key = process.env.RECOLLECT_API_KEY;
const client = createClient<paths>({
  baseUrl: process.env.RECOLLECT_URL ?? "http://localhost:8000",
  headers: key === undefined ? {} : { Authorization: `Bearer ${key}` },
});

const { data, error } = await client.POST("/predict", { body: { query, top_k: 5, explain: true } });
if (data === undefined) {
  const problem: Problem = error;
  console.error(`${problem.status} ${problem.code}: ${problem.detail}`);
  process.exit(1);
}
for (const label of data.labels) {
  const reason = label.because?.[0];
  console.log(`${label.score.toFixed(3)}  ${label.text}${reason ? `  (because of ${JSON.stringify(reason.text)})` : ""}`);
}
