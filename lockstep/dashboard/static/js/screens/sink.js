// One sink: where it is, its last hour, its generations.

import { drawLag } from "../chart.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { commands, facts, lsn, panel, problem, stateOf, table, title, waiting } from "../parts.js";

function commandsOf(sink, isView) {
  const all = [
    ["Build the next generation beside the live one", `lockstep rebuild ${sink}`],
    ["Let readers see the newest complete generation", `lockstep switch ${sink}`],
    ["Let readers see the generation before again", `lockstep switch ${sink} --back`],
    ["Compare every row with the source", `lockstep verify ${sink}`],
    ...(isView ? [] : [["Publish the rows again that differ", `lockstep verify ${sink} --repair`]]),
  ];
  return panel("Commands", commands(all));
}

function generations(list) {
  const columns = [["generation"], ["state"], ["readers"], ["watermark", "number"]];
  const rows = list.map((one) => ({
    key: one.generation,
    cells: [`g${one.generation}`, stateOf(one.state), one.live ? "see it" : "don't", lsn(one.lsn)],
  }));
  return table("Generations", columns, rows, "No generation was built yet.");
}

function viewFacts({ building, ...view }) {
  const progress = building && [
    ["Building", `${building.doing} ${format.count(building.done)} of ${format.count(building.total)}`],
    ["Time left", format.seconds(building.seconds_left)],
  ];
  return facts([
    ...(progress ?? []),
    ["Rows", format.count(view.rows)],
    ["Rows of the state", format.count(view.state_rows)],
    ["State on disk", format.bytes(view.state_bytes)],
    ["Changed rows of tables", format.count(view.changes_in)],
    ["Changed rows of the result", format.count(view.changes_out)],
    ["Result's for each of a table", view.amplification.toFixed(1)],
    ["Transactions in a step", view.transactions_per_step.toFixed(1)],
    ["Rows in a step", view.rows_per_step.toFixed(1)],
  ]);
}

/** What was read and isn't applied, and what is applied and isn't found by queries. */
function beside({ read, visible, events_behind: applied }) {
  const between = (more, fewer) => (more === null || fewer === null ? null : Math.max(0, more - fewer));
  const rows = [];
  if (read) rows.push(["Read, not applied", format.count(between(applied, read.events_behind))]);
  if (visible) {
    rows.push(["Applied, not found yet", format.count(between(visible.events_behind, applied))]);
    rows.push(["Seconds behind for queries", format.seconds(visible.seconds_behind)]);
  }
  return rows;
}

export default {
  name: "Sinks",
  title: ([name]) => name ?? "Sinks",
  isOfOne: true,
  load: { path: ([name]) => (name ? `api/sinks/${encodeURIComponent(name)}` : null), every: 5000 },
  render({ state, document, error, parameters: [name] }) {
    const own = state.sinks.filter((one) => one.name === name);
    const live = own.find((one) => one.live) ?? own[0];
    if (!live) return [title(name ?? "Sinks"), panel(null, h("p", { class: "empty" }, "There is no such sink."))];
    return [
      title(name),
      live.reason &&
        h("ul", { class: "problems" }, problem({ where: name, ...live }, state.sampled_ms)),
      panel(
        live.kind,
        facts([
          ["State", stateOf(live.state)],
          ["Watermark", lsn(live.lsn)],
          ["Seconds behind", format.seconds(live.seconds_behind)],
          ["Events behind", format.count(live.events_behind)],
          ["Bytes behind", format.bytes(live.bytes_behind)],
          ...beside(live),
          ["Rate", format.rate(live.events_per_s, "events")],
          ["Open rejections", h("a", { href: "#/rejections" }, format.count(live.open_rejections))],
          ["Generation", `g${live.generation}`],
        ]),
      ),
      live.view && panel("View", viewFacts(live.view)),
      panel(
        "Seconds behind, last hour",
        document?.lag.length ? h("div", { class: "chart", own: true, key: `chart of ${name}` }) : (error ?? waiting("the last hour")),
      ),
      document && panel("Generations", generations(document.generations), { flush: true }),
      commandsOf(name, Boolean(live.view)),
    ];
  },
  after({ document }, root) {
    const place = root.querySelector(".chart");
    if (place && document) drawLag(place, document.lag);
  },
};
