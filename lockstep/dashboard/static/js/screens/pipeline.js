// The pipeline as it is drawn, with what isn't well on top.

import { diagram } from "../diagram.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { headline, lsn, panel, problem, sentence, severity, stateOf, table, title } from "../parts.js";

/** The live sink that is worst off: one that doesn't get further, else the one that is furthest behind. */
function worstSink(sinks) {
  const live = sinks.filter((sink) => sink.live);
  const isStill = (sink) => ["warn", "bad"].includes(severity(sink.state));
  const behind = (sink) => sink.seconds_behind ?? Infinity;
  return [...live].sort((a, b) => isStill(b) - isStill(a) || behind(b) - behind(a))[0];
}

/** How far it is behind; its state where nobody knows that. */
function worstFigure(sink) {
  return sink.seconds_behind === null ? sink.state : format.seconds(sink.seconds_behind);
}

function roomLeft(source) {
  if (source.retained_bytes === null) return "there is no slot yet";
  return source.safe_wal_bytes === null ? "the server sets no limit" : `${format.bytes(source.safe_wal_bytes)} left`;
}

/** One line where no problem is listed. It says that all is well only where everything is known to run. */
function summary({ capture, sinks, panels }) {
  const known = [capture, ...sinks, ...panels.flatMap((one) => one.rows)].every((one) => ["good", "busy"].includes(severity(one.state)));
  if ([capture, ...sinks].some((one) => one.state === "starting")) {
    return [stateOf("starting", "starting"), "A process has begun, and prepares."];
  }
  if (sinks.some((one) => one.live && one.state === "building")) {
    return [stateOf("building", "building"), "A sink gets its first rows."];
  }
  if (known && sinks.length) return [stateOf("ok", "all well"), "Capture runs, and every sink gets further."];
  if (capture.lsn === null) return [stateOf("unknown", "nothing runs"), sentence("Nothing was captured yet: `lockstep run` starts it.")];
  return [stateOf("unknown", "not everything runs"), "The table of stages says what is known."];
}

function figures(state) {
  const { source, topics, sinks } = state;
  const worst = worstSink(sinks);
  const full = source.minutes_until_full;
  return headline([
    [
      "Worst sink",
      worst ? worstFigure(worst) : format.UNKNOWN,
      worst ? `${worst.name}: ${worst.state}` : "no sink has run yet",
    ],
    [
      "Slot is full in",
      source.wal_status === "lost" ? "lost" : format.minutes(full),
      roomLeft(source),
    ],
    ["Retained WAL", format.bytes(source.retained_bytes), `slot ${source.slot}`],
    ["Rate", format.rate(topics.events_per_s, "events"), `${format.byteRate(source.wal_bytes_per_s)} of WAL`],
  ]);
}

function stages(state) {
  const { source, capture, sinks } = state;
  const rows = [
    {
      key: "capture",
      cells: [
        "in Kafka",
        stateOf(capture.state),
        format.seconds(capture.seconds_behind),
        format.UNKNOWN,
        format.bytes(capture.bytes_behind),
        format.rate(capture.events_per_s, "events"),
        lsn(capture.lsn),
      ],
    },
    ...sinks.map((sink) => ({
      key: `${sink.name} ${sink.generation}`,
      cells: [
        h("a", { href: `#/sink/${encodeURIComponent(sink.name)}` }, sink.live ? sink.name : `${sink.name} g${sink.generation}`),
        stateOf(sink.state),
        format.seconds(sink.seconds_behind),
        format.count(sink.events_behind),
        format.bytes(sink.bytes_behind),
        format.rate(sink.events_per_s, "events"),
        lsn(sink.lsn),
      ],
    })),
  ];
  const columns = [
    ["stage"],
    ["state"],
    ["seconds behind", "number"],
    ["events behind", "number"],
    ["bytes behind", "number"],
    ["rate", "number"],
    ["watermark", "number"],
  ];
  return panel("Stages", table("Stages", columns, rows), {
    flush: true,
    note: h("span", null, "The WAL ends at ", lsn(source.wal_end)),
  });
}

/** What an extension runs. */
function added({ name, title, kind, columns, times, rows }) {
  const shown = columns.map((column) => (times.includes(column) ? format.clock : format.count));
  const lines = rows.map((row) => ({
    key: row.name,
    cells: [row.name, stateOf(row.state), ...row.figures.map((figure, index) => shown[index](figure))],
  }));
  const heads = [[kind], ["state"], ...columns.map((column) => [column, "number"])];
  return panel(title, table(title, heads, lines), { key: name, flush: true });
}

export default {
  name: "Pipeline",
  title: () => "Pipeline",
  render({ state, width }) {
    const problems = state.problems;
    return [
      title("Pipeline"),
      figures(state),
      problems.length > 0
        ? h("ul", { class: "problems", "aria-label": "What isn't well" }, problems.map((one) => problem(one, state.sampled_ms)))
        : h("p", { class: "fine" }, summary(state)),
      h("section", { class: "panel drawing", "aria-label": "Drawing of the pipeline" }, diagram(state, width - 18)),
      stages(state),
      state.panels.map(added),
    ];
  },
};
