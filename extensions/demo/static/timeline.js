// A timeline as it changes. What is done here goes to PostgreSQL; what is shown comes from the view's changes alone.

import { Refused, act, read, refusal } from "../../../static/js/api.js";
import { h, patch } from "../../../static/js/dom.js";
import { clock } from "../../../static/js/format.js";
import { toggleThemeBy } from "../../../static/js/theme.js";

const RETRY_MS = 2000;
const CHANGES_MAX = 8;
const element = (id) => document.getElementById(id);

let user = null;
let people = [];
let clockAheadMs = 0; // of the server's clock, against this browser's
let source = null;
let retry = null;

let rows = new Map(); // what is shown, by the view's key
let coming = null; // all rows, while they are read
let changes = []; // of the step that isn't whole yet
let asOf = null;
let newest = 0; // id of the newest tweet that was ever here
let measured = [];
const waiting = new Set(); // what was done here, and isn't shown yet

/* The view */

function open() {
  clearTimeout(retry);
  source?.close();
  const own = new EventSource(`../views/timeline/changes?follower_id=${user}`);
  source = own;
  own.addEventListener("open", () => {
    // After a break, whatever wasn't whole comes once more.
    coming = null;
    changes = [];
    connection("reading");
  });
  own.addEventListener("waiting", ({ data }) => connection(JSON.parse(data).message));
  own.addEventListener("reset", () => {
    coming = new Map();
    changes = [];
  });
  own.addEventListener("row", ({ data }) => {
    const { key, row } = JSON.parse(data);
    coming.set(key.tweet_id, row);
  });
  own.addEventListener("upsert", ({ data }) => changes.push(JSON.parse(data)));
  own.addEventListener("delete", ({ data }) => changes.push(JSON.parse(data)));
  for (const name of ["synced", "commit"]) own.addEventListener(name, ({ data }) => step(JSON.parse(data).lsn));
  own.addEventListener("trouble", ({ data }) => {
    own.close();
    connection(JSON.parse(data).message);
    retry = setTimeout(comeBack, RETRY_MS);
  });
  own.addEventListener("error", () => {
    connection("not connected");
    if (own.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    refusal(own.url).then((why) => own === source && own.readyState === EventSource.CLOSED && connection(why));
    retry = setTimeout(comeBack, RETRY_MS);
  });
}

/** A server that has started anew knows this page only once it has been loaded from it. */
async function comeBack() {
  const own = source;
  await fetch(location.href, { cache: "no-store" }).catch(() => null);
  if (own === source) open();
}

/** A whole step has come: show it. */
function step(lsn) {
  const isAnew = coming !== null;
  const before = rows;
  rows = coming ?? new Map(rows);
  coming = null;
  for (const { key, row } of changes) {
    if (row) rows.set(key.tweet_id, row);
    else rows.delete(key.tweet_id);
  }
  const seen = {
    lsn: number(lsn),
    arrived: isAnew ? [...rows.values()] : changes.filter(({ row }) => row).map(({ row }) => row),
    gone: changes.filter(({ row, key }) => !row && before.has(key.tweet_id)).map(({ key }) => before.get(key.tweet_id)),
    rows,
  };
  changes = [];
  asOf = lsn;
  connection("live");
  draw();
  seen.atMs = Date.now() + clockAheadMs;
  for (const done of waiting) {
    done.steps.push(seen);
    settle(done);
  }
  if (!isAnew) tellOfOthers(seen);
  newest = Math.max(newest, ...seen.arrived.map((row) => row.tweet_id));
}

function number(lsn) {
  const [high, low] = lsn.split("/");
  return (BigInt(`0x${high}`) << 32n) + BigInt(`0x${low}`);
}

/* What is done here */

/** `isIn` says whether a step shows it: `isIn(step, answer)`. */
async function change(words, path, body, isIn) {
  const done = { words, isIn, body, answer: null, steps: [] };
  waiting.add(done);
  answer("");
  try {
    done.answer = await act(`timeline/${path}`, { user, ...body });
    settle(done);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    waiting.delete(done);
    answer(error.message);
    return false;
  }
  return true;
}

/** Once the answer and a step that has it are here, in whichever order, it is known how long it took. */
function settle(done) {
  if (done.answer === null) return;
  const lsn = number(done.answer.lsn);
  const seen = done.steps.find((one) => done.isIn(one, done.answer) || one.lsn >= lsn);
  done.steps = [];
  if (!seen) return;
  waiting.delete(done);
  tell(done.words, seen.atMs - done.answer.committed_ms);
}

/** Tweets that others have sent since. Their commit was a moment after the time that they have. */
function tellOfOthers({ arrived, atMs }) {
  for (const row of arrived) {
    const isOwn = row.user_id === user;
    const isOfFollow = [...waiting].some((done) => done.body.followee === row.user_id);
    if (row.tweet_id <= newest || isOwn || isOfFollow) continue;
    tell(`A tweet by ${row.name}`, atMs - Date.parse(row.created_at));
  }
}

function tell(words, ms) {
  measured = [{ words, ms: Math.max(0, ms), number: (measured[0]?.number ?? 0) + 1 }, ...measured].slice(0, CHANGES_MAX);
  drawChanges();
}

async function tweet(event) {
  event.preventDefault();
  const field = element("body");
  const body = field.value.trim();
  if (!body) return;
  const isSent = await change("Your tweet", "tweet", { body }, (seen, { tweet: id }) =>
    seen.arrived.some((row) => row.tweet_id === id),
  );
  if (isSent && field.value.trim() === body) field.value = "";
  field.focus();
}

function remove(id) {
  return change("A tweet of yours deleted", "delete", { tweet: id }, (seen) => seen.gone.some((row) => row.tweet_id === id));
}

async function follow(person) {
  const verb = person.is_followed ? "unfollow" : "follow";
  const words = person.is_followed ? `${person.name} unfollowed` : `${person.name} followed`;
  const isTheirs = (row) => row.user_id === person.id;
  await change(words, verb, { followee: person.id }, (seen) =>
    verb === "follow" ? seen.arrived.some(isTheirs) : seen.gone.some(isTheirs) && ![...seen.rows.values()].some(isTheirs),
  );
  await loadPeople();
}

/* Drawing */

function draw() {
  const sorted = [...rows.values()].sort(
    (one, other) => Date.parse(other.created_at) - Date.parse(one.created_at) || other.tweet_id - one.tweet_id,
  );
  patch(
    element("tweets"),
    sorted.length === 0 && h("li", { key: "none", class: "quiet" }, "Nothing yet: follow somebody, or tweet."),
    sorted.map((row) =>
      h(
        "li",
        { key: row.tweet_id, class: newest > 0 && row.tweet_id > newest ? "new" : undefined },
        h("span", { class: "who" }, h("strong", null, row.name), h("time", { datetime: row.created_at }, clock(Date.parse(row.created_at)))),
        h("p", { class: "body" }, row.body),
        row.user_id === user &&
          h("button", { type: "button", class: "small", "aria-label": `Delete: ${row.body}`, onclick: () => remove(row.tweet_id) }, "Delete"),
      ),
    ),
  );
  patch(element("as-of"), asOf && ["as of ", h("span", { class: "lsn" }, asOf)]);
}

function drawChanges() {
  patch(
    element("changes"),
    measured.length === 0 && h("li", { key: "none", class: "quiet" }, "Tweet, delete, follow or unfollow."),
    measured.map(({ words, ms, number: key }) =>
      h("li", { key }, h("span", { class: "what" }, words), h("span", { class: "took" }, `${(ms / 1000).toFixed(2)} s`)),
    ),
  );
}

function drawPeople() {
  const others = people.filter((one) => one.id !== user);
  patch(
    element("people"),
    others.map((one) =>
      h(
        "li",
        { key: one.id },
        h("span", { class: "name" }, one.name),
        h(
          "button",
          { type: "button", class: "small", "aria-label": `${one.is_followed ? "Unfollow" : "Follow"} ${one.name}`, onclick: () => follow(one) },
          one.is_followed ? "Unfollow" : "Follow",
        ),
      ),
    ),
  );
  patch(
    element("user"),
    people.map((one) => h("option", { key: one.id, value: one.id, selected: one.id === user }, one.name)),
  );
}

function answer(words) {
  element("answer").textContent = words;
}

/** Words that are there already aren't set again: a screen reader would say them at each step. */
function connection(words) {
  if (element("connection").textContent !== words) element("connection").textContent = words;
}

/* It begins */

/** How far another clock is ahead: 0 where both may be the same. It was read between two moments of this one. */
function ahead(otherMs, fromMs, untilMs) {
  return otherMs >= fromMs && otherMs <= untilMs ? 0 : otherMs - (fromMs + untilMs) / 2;
}

async function loadPeople() {
  const askedMs = Date.now();
  try {
    const found = await read("timeline/people", { user: user ?? undefined });
    clockAheadMs = ahead(found.now_ms, askedMs, Date.now());
    people = found.people;
    user ??= found.visitor;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    answer(error.message);
  }
  drawPeople();
}

element("user").addEventListener("change", async (event) => {
  user = Number(event.target.value);
  rows = new Map();
  newest = 0;
  asOf = null;
  measured = [];
  waiting.clear();
  draw();
  drawChanges();
  open();
  await loadPeople();
});
element("compose").addEventListener("submit", tweet);
toggleThemeBy(element("theme"));
drawChanges();
connection("connecting");
while (user === null) {
  await loadPeople();
  if (user === null) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
}
answer("");
open();
