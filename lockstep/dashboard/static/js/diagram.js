// The pipeline as it is: source with its slot, capture, topics, and a job for each sink. From left to right where there
// is room, from top to bottom on a phone. Positions depend only on the width and the number of sinks: nothing jumps.

import { h } from "./dom.js";
import * as format from "./format.js";
import { mark, severity } from "./parts.js";

const WIDE_FROM = 760;
const BOX_HEIGHT = 66;
const STEP = 86;

function fitted(text, width, perCharacter = 7) {
  const room = Math.max(3, Math.floor(width / perCharacter));
  const whole = format.text(text);
  return whole.length <= room ? whole : `${whole.slice(0, room - 1)}…`;
}

/** A box with a name, a line below it, and a state. */
function box({ x, y, width, height = BOX_HEIGHT, name, note, state, href, label, extra }) {
  const kind = state === undefined ? "none" : severity(state);
  const room = width - 24;
  const inside = [
    h("title", null, label ?? name),
    h("rect", { class: `box ${kind} ${state ?? ""}`, x, y, width, height, rx: 9 }),
    h("text", { class: "name", x: x + 12, y: y + 23 }, fitted(name, room, 7.6)),
    h("text", { class: "note", x: x + 12, y: y + 40 }, fitted(note, room, 6)),
    state !== undefined &&
      h(
        "g",
        null,
        mark(kind, { class: `mark ${kind}`, transform: `translate(${x + 12} ${y + 47.5}) scale(.8)` }),
        h("text", { class: "note", x: x + 27, y: y + 56 }, fitted(state ?? "unknown", room - 15, 6)),
      ),
    extra,
  ];
  return href ? h("a", { href, "aria-label": label ?? name }, inside) : h("g", null, inside);
}

/** A line along which something flows, or doesn't. */
function edge(path, { rate, state }) {
  const kind = severity(state);
  const isFlowing = (rate ?? 0) > 0 && kind !== "bad";
  return [
    h("path", { class: kind === "bad" ? "stopped" : "edge", d: path }),
    isFlowing && h("path", { class: `flow ${kind}`, d: path }),
  ];
}

function label(x, y, text, anchor = "middle") {
  return h("text", { class: "note", x, y, "text-anchor": anchor }, text);
}

function sinkLabel(sink) {
  return sink.live ? sink.name : `${sink.name} g${sink.generation}`;
}

function spoken(sink) {
  return `Sink ${sinkLabel(sink)}, ${sink.kind}: ${sink.state}, ${format.seconds(sink.seconds_behind)} behind`;
}

function sourceParts(state) {
  const { source, capture, topics } = state;
  // Nobody can say which tables patterns take in before Kafka has answered once.
  const counted = topics.count === null ? "topics" : format.plural(topics.count, "topic");
  return {
    source: {
      name: source.database ?? "source",
      note: source.server,
      href: "#/source",
      label: `Source ${source.database} at ${source.server}, slot ${source.slot}: ${source.wal_status}`,
    },
    slot: { name: source.slot, note: `holds ${format.bytes(source.retained_bytes)}`, state: source.wal_status },
    capture: { name: "capture", note: format.rate(capture.events_per_s, "events"), state: capture.state },
    topics: {
      name: counted,
      note: format.rate(topics.events_per_s, "events"),
      href: "#/tables",
      label: `${counted}, ${format.rate(topics.events_per_s, "events")}`,
    },
  };
}

/** The drawing for a container of this width. */
export function diagram(state, width) {
  return width >= WIDE_FROM ? wide(state, width) : narrow(state, width);
}

function frame(width, height, children) {
  return h(
    "svg",
    {
      viewBox: `0 0 ${Math.round(width)} ${Math.round(height)}`,
      width: Math.round(width),
      height: Math.round(height),
      role: "group",
      "aria-label": "The pipeline",
    },
    children,
  );
}

function wide(state, width) {
  const { sinks } = state;
  const parts = sourceParts(state);
  const rows = Math.max(2, sinks.length);
  const height = rows * STEP + 30;
  const middle = height / 2;
  const widths = [0.17, 0.125, 0.125, 0.115, 0.175].map((share) => share * width);
  const gap = (width - widths.reduce((sum, one) => sum + one, 0) - 12) / 4;
  const lefts = widths.map((_, index) => 6 + widths.slice(0, index).reduce((sum, one) => sum + one, 0) + index * gap);
  const [sourceWidth, captureWidth, topicsWidth, jobWidth, sinkWidth] = widths;
  const top = middle - BOX_HEIGHT / 2;
  const sourceHeight = 134;

  const between = (index, y, { above, below, rate, state: edgeState }) => {
    const from = lefts[index] + widths[index];
    const to = lefts[index + 1];
    return [
      edge(`M${from} ${y}H${to}`, { rate, state: edgeState }),
      label((from + to) / 2, y - 8, above),
      below && label((from + to) / 2, y + 17, below),
    ];
  };

  return frame(width, height, [
    between(0, middle, {
      above: format.byteRate(state.source.wal_bytes_per_s),
      below: state.capture.bytes_behind === null ? "" : `${format.bytes(state.capture.bytes_behind)}`,
      rate: state.source.wal_bytes_per_s,
      state: state.capture.state,
    }),
    between(1, middle, {
      above: format.rate(state.topics.events_per_s, "ev."),
      below: format.seconds(state.capture.seconds_behind),
      rate: state.topics.events_per_s,
      state: state.capture.state,
    }),
    box({ x: lefts[0], y: middle - sourceHeight / 2, width: sourceWidth, height: sourceHeight, ...parts.source }),
    box({ x: lefts[0] + 8, y: middle - sourceHeight / 2 + 58, width: sourceWidth - 16, ...parts.slot }),
    box({ x: lefts[1], y: top, width: captureWidth, ...parts.capture }),
    box({ x: lefts[2], y: top, width: topicsWidth, ...parts.topics }),
    sinks.length === 0 && label(lefts[3] + jobWidth, middle + 4, "no sink has run yet"),
    sinks.map((sink, index) => {
      const y = 15 + (height - 30) * ((index + 0.5) / sinks.length);
      const from = lefts[2] + topicsWidth;
      const to = lefts[3];
      const bend = (to - from) / 2;
      return h("g", { key: sinkLabel(sink) }, [
        edge(`M${from} ${middle}C${from + bend} ${middle} ${to - bend} ${y} ${to} ${y}`, {
          rate: sink.events_per_s,
          state: sink.state,
        }),
        between(3, y, {
          above: format.rate(sink.events_per_s, "ev."),
          below: format.seconds(sink.seconds_behind),
          rate: sink.events_per_s,
          state: sink.state,
        }),
        box({
          x: lefts[3],
          y: y - BOX_HEIGHT / 2,
          width: jobWidth,
          name: "job",
          note: `${format.count(sink.events_behind)} behind`,
          state: sink.state,
        }),
        box({
          x: lefts[4],
          y: y - BOX_HEIGHT / 2,
          width: sinkWidth,
          name: sinkLabel(sink),
          note: sink.kind,
          state: sink.open_rejections ? "rejected" : sink.state,
          href: `#/sink/${encodeURIComponent(sink.name)}`,
          label: spoken(sink),
        }),
      ]);
    }),
  ]);
}

function narrow(state, width) {
  const parts = sourceParts(state);
  const inner = width - 12;
  const half = inner / 2;
  const gap = 40;
  const sourceHeight = 134;
  let y = 6;
  const children = [];

  const down = (text, rate, edgeState) => {
    children.push(edge(`M${6 + half} ${y}V${y + gap}`, { rate, state: edgeState }));
    children.push(label(6 + half + 10, y + gap / 2 + 4, text, "start"));
    y += gap;
  };

  children.push(box({ x: 6, y, width: inner, height: sourceHeight, ...parts.source }));
  children.push(box({ x: 14, y: y + 58, width: inner - 16, ...parts.slot }));
  y += sourceHeight;
  down(format.byteRate(state.source.wal_bytes_per_s), state.source.wal_bytes_per_s, state.capture.state);
  children.push(box({ x: 6, y, width: inner, ...parts.capture }));
  y += BOX_HEIGHT;
  down(
    `${format.rate(state.topics.events_per_s, "events")}, ${format.seconds(state.capture.seconds_behind)}`,
    state.topics.events_per_s,
    state.capture.state,
  );
  children.push(box({ x: 6, y, width: inner, ...parts.topics }));
  y += BOX_HEIGHT;
  const bus = y;
  for (const sink of state.sinks) {
    const top = y + 16;
    children.push(
      h("g", { key: sinkLabel(sink) }, [
        edge(`M16 ${bus}V${top + BOX_HEIGHT / 2}H38`, { rate: sink.events_per_s, state: sink.state }),
        box({
          x: 38,
          y: top,
          width: inner - 32,
          name: sinkLabel(sink),
          note: `${sink.kind}, ${format.seconds(sink.seconds_behind)} behind, ${format.rate(sink.events_per_s, "ev.")}`,
          state: sink.state,
          href: `#/sink/${encodeURIComponent(sink.name)}`,
          label: spoken(sink),
        }),
      ]),
    );
    y = top + BOX_HEIGHT;
  }
  return frame(width, y + 8, children);
}
