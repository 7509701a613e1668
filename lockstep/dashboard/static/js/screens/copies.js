// Copies of tables and builds of generations: how far, how fast, how long still.

import { h } from "../dom.js";
import * as format from "../format.js";
import { bar, facts, panel, stateOf, table, title, waiting } from "../parts.js";

function copyRow(one) {
  const isDone = one.state === "copied";
  const kind = isDone ? "good" : one.state === "paused" ? "rest" : "";
  const whole = Math.max(one.rows, one.rows_estimated ?? 0);
  return {
    key: one.table,
    cells: [
      h("a", { href: `#/tables/${encodeURIComponent(one.table)}` }, one.table),
      stateOf(one.state),
      isDone ? bar(1, 1, kind) : bar(one.rows, whole, kind),
      isDone ? "100 %" : format.percent(one.rows, one.rows_estimated),
      format.count(one.rows),
      format.bytes(one.bytes),
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
