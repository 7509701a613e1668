// Asking the server. An answer that isn't what was asked for is an error with a sentence.

const TOKEN = "lockstep-token";
const ANSWER_MS = 120_000; // doctor asks every server, and may wait for each

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The token that actions are sent with. It stays in this tab. */
export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function keepToken(value) {
  sessionStorage.setItem(TOKEN, value.trim());
}

/** A document of the API. Raises Refused with the server's sentence, also when it can't be reached. */
export function read(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return ask(query ? `${path}?${query}` : path, { method: "GET" });
}

/** Have something done. The answer is a document. */
export function act(path, body) {
  return ask(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Lockstep-Token": token() },
  });
}

async function ask(path, request) {
  let response;
  try {
    response = await fetch(path, { ...request, signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
  } catch (error) {
    const why = error.name === "TimeoutError" ? "hasn't answered for two minutes" : "doesn't answer";
    throw new Refused(`The dashboard's server ${why}.`, 0);
  }
  const document = await response.json().catch(() => null);
  if (response.ok && document !== null) return document;
  const said = document?.message ?? document?.detail;
  throw new Refused(typeof said === "string" ? said : `The server answered ${response.status}.`, response.status);
}
