// Asking the server. An answer that isn't what was asked for is an error with a sentence.

const ANSWER_MS = 120_000; // doctor asks every server, and may wait for each

export class Refused extends Error {}

/** A document of the API. Raises Refused with the server's sentence, also when it can't be reached. */
export function read(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return ask(query ? `${path}?${query}` : path);
}

/** Have something done. The answer is a document. */
export function act(path, body) {
  return ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
}

/** Why the server gives no stream at this address. */
export async function refusal(path) {
  const asking = new AbortController();
  try {
    const response = await fetch(path, { signal: asking.signal, cache: "no-store" });
    if (response.ok) return "The stream has ended.";
    return said(response, await response.json().catch(() => null));
  } catch {
    return "The dashboard's server doesn't answer.";
  } finally {
    asking.abort();
  }
}

function said(response, document) {
  const words = document?.message ?? document?.detail;
  return typeof words === "string" ? words : `The server answered ${response.status}.`;
}

async function ask(path, request = {}) {
  let response;
  try {
    response = await fetch(path, { ...request, signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  } catch (error) {
    const why = error.name === "TimeoutError" ? "hasn't answered for two minutes" : "doesn't answer";
    throw new Refused(`The dashboard's server ${why}.`);
  }
  const document = await response.json().catch(() => null);
  if (response.ok && document !== null) return document;
  throw new Refused(said(response, document));
}
