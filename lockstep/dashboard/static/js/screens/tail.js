// Events as they come. Rows that come faster than anybody reads are dropped from the far end.

import { refusal } from "../api.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { button, lsn, panel, sentence, table, title } from "../parts.js";

const KEPT = 200;
let source = null;
let events = [];
let chosen = { table: "", key: "", op: "" };
let trouble = "";

function stop() {
  source?.close();
  source = null;
}

function start(redraw) {
  stop();
  events = [];
  trouble = "";
  const given = Object.entries(chosen).filter(([, value]) => value !== "");
  const address = `api/tail?${new URLSearchParams(given)}`;
  const opened = (source = new EventSource(address));
  source.addEventListener("event", (event) => {
    events = [JSON.parse(event.data), ...events].slice(0, KEPT);
    redraw();
  });
  source.addEventListener("trouble", (event) => {
    stop(); // else the browser would ask again and again
    trouble = JSON.parse(event.data).message;
    redraw();
  });
  source.addEventListener("error", async () => {
    if (opened.readyState === EventSource.CLOSED) {
      const why = await refusal(address);
      if (source !== opened) return;
      stop();
      trouble = why;
    } else trouble = "The events don't come any more. The browser asks for them again.";
    redraw();
  });
  source.addEventListener("open", () => {
    trouble = "";
    redraw();
  });
  redraw();
}

const OPERATIONS = { "": "all", c: "insert", r: "copy", u: "update", d: "delete" };

function form(redraw) {
  return h(
    "form",
    {
      class: "fields",
      onsubmit: (event) => {
        event.preventDefault();
        chosen = Object.fromEntries(new FormData(event.target));
        chosen.table = chosen.table.trim();
        start(redraw);
      },
    },
    h("label", { class: "wide" }, "Table", h("input", { name: "table", placeholder: "public.customer", value: chosen.table })),
    h("label", { class: "wide" }, "Key", h("input", { name: "key", placeholder: "any", value: chosen.key })),
    h(
      "label",
      null,
      "Operation",
      h("select", { name: "op" }, Object.entries(OPERATIONS).map(([op, word]) => h("option", { value: op }, word))),
    ),
    h("button", { type: "submit", class: "primary" }, "Tail"),
    source && button("Stop", () => { stop(); redraw(); }),
  );
}

export default {
  name: "Live tail",
  title: () => "Live tail",
  leave: stop,
  render({ redraw }) {
    const columns = [["tag"], ["table", "wraps"], ["operation"], ["key", "wraps"], ["committed", "number"]];
    const rows = events.map((one) => ({
      key: `${one.table} ${one.partition} ${one.offset}`,
      cells: [lsn(one.tag), one.table, OPERATIONS[one.op] ?? one.op, h("code", null, one.key), format.clock(one.time_ms)],
    }));
    return [
      title("Live tail", "Events as they come to the topics. Values aren't shown: follow a key to see its rows."),
      panel(null, form(redraw)),
      trouble && h("p", { class: "quiet", role: "status" }, sentence(trouble)),
      panel("Events", table("Events", columns, rows, source ? "Waiting for the next event." : "Nothing is followed."), { flush: true }),
    ];
  },
};
