// Copies of tables and builds of generations: how far, how fast, how long still.

import { confirmAction } from "../dialog.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { bar, button, facts, panel, stateOf, table, title, waiting } from "../parts.js";

const SENTENCES = {
  pause: "The copy stops after the rows that it reads now. Sinks with this table get no further until it is resumed.",
  resume: "The copy goes on where it stopped.",
  cancel: "The copy ends. Rows that it has published stay.",
};

function act(action, name) {
  const verb = action[0].toUpperCase() + action.slice(1);
  confirmAction({
    title: `${verb} the copy of ${name}?`,
    text: SENTENCES[action],
    label: verb,
    path: `api/actions/${action}_copy`,
    body: { table: name },
    isDangerous: action === "cancel",
  });
}

function copyRow(one) {
  const isDone = one.state === "copied";
  const kind = isDone ? "good" : one.state === "paused" ? "rest" : "";
  const whole = Math.max(one.rows, one.rows_estimated ?? 0);
  return {
    key: one.table,
    cells: [
      one.table,
      stateOf(one.state),
      isDone ? bar(1, 1, kind) : bar(one.rows, whole, kind),
      isDone ? "100 %" : format.percent(one.rows, one.rows_estimated),
      format.count(one.rows),
      format.bytes(one.bytes),
      !isDone &&
        h(
          "div",
          { class: "buttons" },
          one.state === "paused"
            ? button("Resume", () => act("resume", one.table), { class: "small", "aria-label": `Resume ${one.table}` })
            : button("Pause", () => act("pause", one.table), { class: "small", "aria-label": `Pause ${one.table}` }),
          button("Cancel", () => act("cancel", one.table), { class: "small", "aria-label": `Cancel ${one.table}` }),
        ),
    ],
  };
}

function buildRow(one) {
  return {
    key: `${one.sink} ${one.generation}`,
    cells: [
      h("a", { href: `#/sink/${encodeURIComponent(one.sink)}` }, `${one.sink} g${one.generation}`),
      stateOf(one.state),
      bar(one.events ?? 0, one.events_total ?? 0),
      format.percent(one.events, one.events_total),
      format.count(one.events),
    ],
  };
}

export default {
  name: "Copies and rebuilds",
  title: () => "Copies and rebuilds",
  load: { path: () => "api/copies", every: 2000 },
  render({ document, error }) {
    const copyColumns = [
      ["table", "wraps"],
      ["state"],
      ["done"],
      ["share", "number"],
      ["rows", "number"],
      ["bytes", "number"],
      ["actions", "actions"],
    ];
    const buildColumns = [["build"], ["state"], ["done"], ["share", "number"], ["events", "number"]];
    if (!document) return [title("Copies and rebuilds"), panel(null, error ?? waiting("the copies"))];
    return [
      title("Copies and rebuilds"),
      panel(
        "Copies",
        [
          h(
            "div",
            { class: "inside" },
            facts([
              ["Rows a second", format.rate(document.rows_per_s, "rows")],
              ["Bytes a second", format.byteRate(document.bytes_per_s)],
              ["Time left", format.seconds(document.seconds_left)],
              ["WAL held meanwhile", format.text(document.held)],
            ]),
          ),
          table("Copies of tables", copyColumns, document.copies.map(copyRow), "No table is copied."),
        ],
        { flush: true },
      ),
      panel("Builds", table("Builds of generations", buildColumns, document.builds.map(buildRow), "No generation is built."), {
        flush: true,
      }),
    ];
  },
};
