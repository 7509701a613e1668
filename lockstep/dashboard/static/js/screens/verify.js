// Comparisons with the source: the last one of each sink, and how to have another.

import { h } from "../dom.js";
import * as format from "../format.js";
import { commands, lsn, panel, stateOf, table, title, waiting } from "../parts.js";

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

export default {
  name: "Verify",
  title: () => "Verify",
  load: { path: () => "api/verify", every: 5000 },
  render({ state, document, error }) {
    const names = [...new Set(state.sinks.map((sink) => sink.name))];
    return [
      title("Verify", "Each row of a sink, compared with the source while both are written to."),
      panel(
        "Commands",
        names.length
          ? commands(names.map((name) => [`Compare every row of ${name} with the source`, `lockstep verify ${name}`]))
          : h("p", { class: "quiet" }, "There is no sink yet."),
      ),
      panel(
        "Last comparison of each sink",
        document
          ? table("Last comparison of each sink", KEPT, document.sinks.map(keptRow), "No sink was compared as a whole yet.")
          : (error ?? waiting("the comparisons")),
        { flush: true },
      ),
    ];
  },
};
