// The parts that screens are made of.

import { defined } from "./definitions.js";
import { h } from "./dom.js";
import * as format from "./format.js";

const CLASSES = {
  good: ["current", "running", "ok", "ready", "equal", "streaming", "copied", "reserved", "right", "done"],
  busy: ["starting", "behind", "building", "copying", "in stream"],
  rest: ["paused", "waiting", "waits", "queued", "extended"],
  warn: ["warning", "stalled", "absent", "older", "differs", "different", "incomplete", "overdue", "unreserved", "missing", "unanswered", "retrying"],
  bad: ["stopped", "silent", "error", "lost", "refused", "failed", "wrong", "rejected", "resurrected"],
};
const SHAPES = {
  good: "M2 6.2 5 9 10 3",
  busy: "M2 1 11 6 2 11z",
  rest: "M2 1h3v10H2z M7 1h3v10H7z",
  warn: "M6 1 11.5 11H.5z",
  bad: "M1 1h10v10H1z",
  none: "M6 1a5 5 0 1 0 .01 0z",
};

/** How bad a state is: good, busy, rest, warn, bad, or none where nobody knows. */
export function severity(state) {
  const word = String(state ?? "").toLowerCase();
  return Object.keys(CLASSES).find((name) => CLASSES[name].includes(word)) ?? "none";
}

/** The shape that stands for a severity, in a square of 12. */
export function mark(kind, properties = {}) {
  const line = kind === "good" ? { fill: "none", stroke: "currentColor", "stroke-width": 2 } : { fill: "currentColor" };
  return h("path", { d: SHAPES[kind], ...line, ...properties });
}

/** A state with its shape and its word. */
export function stateOf(state, word = state) {
  const kind = severity(state);
  return h(
    "span",
    { class: `state ${kind}` },
    h("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, mark(kind)),
    word ? String(word).replaceAll("_", " ") : "unknown",
  );
}

/** A sentence in which commands stand between backticks. */
export function sentence(text) {
  return String(text ?? "")
    .split("`")
    .map((piece, index) => (index % 2 ? h("code", null, piece) : piece));
}

export function panel(title, inside, { note, buttons, flush = false, key } = {}) {
  return h(
    "section",
    { class: "panel", key },
    title && h("header", null, h("h2", null, title), note && h("p", null, note), h("span", { class: "space" }), buttons),
    flush ? inside : h("div", { class: "inside" }, inside),
  );
}

export function title(text, note) {
  return h(
    "div",
    { class: "title" },
    h("h1", null, text),
    note && h("p", null, note),
  );
}

/** Figures by their labels, each with its definition. */
export function facts(entries) {
  return h(
    "dl",
    { class: "facts" },
    entries.map(([label, value]) => h("div", null, h("dt", defined(label), label), h("dd", null, value))),
  );
}

/** The large figures on top: label, value, note. */
export function headline(entries) {
  return h(
    "dl",
    { class: "headline" },
    entries.map(([label, value, note]) =>
      h(
        "div",
        null,
        h("dt", defined(label), label),
        h("dd", { class: "figure", title: typeof value === "string" ? value : undefined }, value),
        h("dd", { class: "note", title: typeof note === "string" ? note : undefined }, note || "\u00a0"),
      ),
    ),
  );
}

/** A table. A column is `[heading, kind]`, kind being "number", "wraps" or nothing. */
export function table(caption, columns, rows, nothing = "Nothing here.") {
  if (!rows.length) return h("p", { class: "empty" }, nothing);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      null,
      h("caption", { class: "unseen" }, caption),
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          columns.map(([heading, kind]) => h("th", { scope: "col", class: kind, ...defined(heading) }, heading)),
        ),
      ),
      h(
        "tbody",
        null,
        rows.map(({ key, cells }) =>
          h(
            "tr",
            { key },
            cells.map((cell, index) =>
              index === 0
                ? h("th", { scope: "row", class: columns[0][1] }, cell)
                : h("td", { class: columns[index][1] }, cell),
            ),
          ),
        ),
      ),
    ),
  );
}

/** What isn't well. `word` is said in place of the state's own. */
export function problem({ where, state, word, since_ms: sinceMs, reason, next_step: nextStep }, now) {
  return h(
    "li",
    { class: `problem ${severity(state)}`, key: `${where} ${word ?? state}` },
    stateOf(state, word ?? state),
    h(
      "div",
      null,
      h("p", null, h("strong", null, where), reason && [": ", sentence(reason)]),
      nextStep && h("p", { class: "next" }, sentence(nextStep)),
    ),
    h("span", { class: "since" }, sinceMs ? `since ${format.clock(sinceMs)} (${format.seconds((now - sinceMs) / 1000)})` : ""),
  );
}

/** Commands by what they are for, each with a button that copies it. */
export function commands(entries) {
  return h(
    "dl",
    { class: "commands" },
    entries.map(([purpose, command]) => h("div", { key: command }, h("dt", null, purpose), h("dd", null, copied(command)))),
  );
}

/** An argument of a command, as a shell takes it. */
export function quoted(text) {
  return /^[\w.,:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Text with a button that copies it. */
export function copied(text) {
  return h(
    "div",
    { class: "copied" },
    h("pre", { tabindex: "0" }, text),
    h(
      "button",
      {
        type: "button",
        class: "small",
        onclick: async (event) => {
          const button = event.currentTarget;
          await navigator.clipboard?.writeText(text).catch(() => {});
          button.firstChild.data = "Copied";
          setTimeout(() => button.isConnected && (button.firstChild.data = "Copy"), 1500);
        },
      },
      "Copy",
    ),
  );
}

/** How much of a whole is done. */
export function bar(part, whole, kind = "") {
  const done = whole > 0 ? Math.max(0, Math.min(100, (100 * part) / whole)) : 0;
  return h(
    "svg",
    { class: `progress ${kind}`, viewBox: "0 0 100 7", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("rect", { x: 0, y: 0, width: done.toFixed(1), height: 7 }),
  );
}

export function button(label, onclick, properties = {}) {
  return h("button", { type: "button", onclick, ...properties }, label);
}

export function lsn(value) {
  return h("span", { class: "lsn" }, format.text(value));
}

export function waiting(what) {
  return h("p", { class: "empty", role: "status" }, `Asking for ${what} …`);
}
