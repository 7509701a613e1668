// Comparisons with the source: the last ones, and one at a click.

import { confirmAction } from "../dialog.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { button, lsn, panel, stateOf, table, title, waiting } from "../parts.js";

function verify(sink) {
  confirmAction({
    title: `Verify ${sink}?`,
    text: "Every row of the sink is compared with the source. Both are read whole.",
    label: "Verify",
    path: "api/actions/verify",
    body: { sink },
  });
}

function repair(sink) {
  confirmAction({
    title: `Repair ${sink}?`,
    text: "The source's current rows of the keys that differ are published again, in order with the stream.",
    label: "Repair",
    path: "api/actions/repair",
    body: { sink },
  });
}

const KEPT = [
  ["sink"],
  ["result"],
  ["when", "number"],
  ["differing", "number"],
  ["verified through", "number"],
  ["equal as of", "number"],
];

function keptRow(one) {
  const through = one.verified_through_ms;
  return {
    key: one.sink,
    cells: [
      one.sink,
      [
        stateOf(one.state),
        one.error && h("p", { class: "quiet small" }, one.error),
        one.but_for.length > 0 && h("p", { class: "quiet small" }, `but for ${one.but_for.join("; ")}`),
      ],
      format.clock(one.ended_ms),
      format.count(one.differing),
      lsn(one.verified_through),
      through === null ? format.UNKNOWN : format.clock(through),
    ],
  };
}

const COLUMNS = [
  ["sink"],
  ["result"],
  ["when", "number"],
  ["rows", "number"],
  ["differing", "number"],
  ["verified through", "number"],
  ["took", "number"],
  ["actions", "actions"],
];

export default {
  name: "Verify",
  title: () => "Verify",
  load: { path: () => "api/verify", every: 5000 },
  render({ state, document, error }) {
    const names = [...new Set(state.sinks.map((sink) => sink.name))];
    const views = new Set(state.sinks.filter((sink) => sink.view).map((sink) => sink.name)); // these are rebuilt instead
    const row = (one) => ({
      key: `${one.sink} ${one.table} ${one.finished_ms}`,
      cells: [
        one.table === null ? one.sink : `${one.table} in ${one.sink}`,
        stateOf(one.state),
        format.clock(one.finished_ms),
        format.count(one.rows),
        format.count(one.differing),
        lsn(one.verified_through),
        format.seconds(one.seconds),
        one.differing > 0 && !views.has(one.sink) && button("Repair", () => repair(one.sink), { class: "small", "aria-label": `Repair ${one.sink}` }),
      ],
    });
    return [
      title("Verify", "Each row of a sink, compared with the source while both are written to."),
      panel(
        "Verify now",
        names.length
          ? h("div", { class: "buttons" }, names.map((name) => button(name, () => verify(name), { key: name, "aria-label": `Verify ${name}` })))
          : h("p", { class: "quiet" }, "There is no sink yet."),
      ),
      panel(
        "Last comparison of each sink",
        document
          ? table("Last comparison of each sink", KEPT, document.sinks.map(keptRow), "No sink was compared as a whole yet.")
          : (error ?? waiting("the comparisons")),
        { flush: true },
      ),
      document && panel(
        "Asked for here",
        table("Asked for here", COLUMNS, document.runs.map(row), "Nothing was asked for since the dashboard's server started."),
        { flush: true },
      ),
    ];
  },
};
