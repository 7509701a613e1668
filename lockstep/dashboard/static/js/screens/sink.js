// One sink: where it is, its last hour, its batches, its generations.

import { drawLag } from "../chart.js";
import { confirmAction } from "../dialog.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { button, facts, lsn, panel, problem, stateOf, table, title, waiting, withoutUnknown } from "../parts.js";

function ask(action, sink, details) {
  confirmAction({ ...details, path: `api/actions/${action}`, body: { sink } });
}

function actions(sink) {
  return [
    button("Rebuild", () =>
      ask("rebuild", sink, {
        title: `Rebuild ${sink}?`,
        text: "A new generation is built from the log beside the live one. Readers see no change until it is switched to.",
        label: "Rebuild",
      }),
    ),
    button("Switch", () =>
      ask("switch", sink, {
        title: `Switch readers of ${sink}?`,
        text: "Readers see the newest complete generation from then on. The one before stays, to go back to.",
        label: "Switch",
      }),
    ),
    button("Back", () =>
      ask("switch_back", sink, {
        title: `Switch readers of ${sink} back?`,
        text: "Readers see the generation before again.",
        label: "Switch back",
        isDangerous: true,
      }),
    ),
  ];
}

function generations(list) {
  const columns = [["generation"], ["state"], ["readers"], ["rows", "number"], ["watermark", "number"]];
  const rows = list.map((one) => ({
    key: one.generation,
    cells: [`g${one.generation}`, stateOf(one.state), one.live ? "see it" : "don't", format.count(one.rows), lsn(one.lsn)],
  }));
  return table("Generations", ...withoutUnknown(columns, rows, 3), "No generation was built yet.");
}

function batches(list) {
  const columns = [
    ["batch"],
    ["done", "number"],
    ["from", "number"],
    ["to", "number"],
    ["events", "number"],
    ["read", "number"],
    ["write", "number"],
    ["commit", "number"],
  ];
  const ms = (value) => (value === null || value === undefined ? format.UNKNOWN : `${format.count(value)} ms`);
  const rows = list.map((one) => ({
    key: one.batch,
    cells: [
      format.count(one.batch),
      format.clock(one.finished_ms),
      lsn(one.from_lsn),
      lsn(one.to_lsn),
      format.count(one.events),
      ms(one.read_ms),
      ms(one.write_ms),
      ms(one.commit_ms),
    ],
  }));
  return table("Batches", columns, rows, "No batch was seen since the dashboard's server started.");
}

export default {
  name: "Sinks",
  title: ([name]) => name ?? "Sinks",
  load: { path: ([name]) => (name ? `api/sinks/${encodeURIComponent(name)}` : null), every: 5000 },
  render({ state, document, error, parameters: [name] }) {
    const own = state.sinks.filter((one) => one.name === name);
    const live = own.find((one) => one.live) ?? own[0];
    if (!live) return [title(name ?? "Sinks"), panel(null, h("p", { class: "empty" }, "There is no such sink."))];
    return [
      title(name, null, actions(name)),
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
          ["Rate", format.rate(live.events_per_s, "events")],
          ["Open rejections", h("a", { href: "#/rejections" }, format.count(live.open_rejections))],
          ["Generation", `g${live.generation}`],
        ]),
      ),
      panel(
        "Seconds behind, last hour",
        document?.lag.length ? h("div", { class: "chart", own: true, key: `chart of ${name}` }) : (error ?? waiting("the last hour")),
      ),
      document && panel("Generations", generations(document.generations), { flush: true }),
      document?.batches.length > 0 && panel("Batches", batches(document.batches), { flush: true }),
    ];
  },
  after({ document }, root) {
    const place = root.querySelector(".chart");
    if (place && document) drawLag(place, document.lag);
  },
};
