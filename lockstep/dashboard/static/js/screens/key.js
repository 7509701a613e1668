// What became of one row: at the source, on the topic, in each sink, and a sentence that judges.

import { h } from "../dom.js";
import * as format from "../format.js";
import { lsn, panel, sentence, stateOf, table, title, waiting } from "../parts.js";

function rowOf(row) {
  return row ? h("pre", { class: "row", tabindex: "0" }, JSON.stringify(row, null, 2)) : h("p", { class: "quiet" }, "no row");
}

function form(name, key, reload) {
  return h(
    "form",
    {
      class: "fields",
      onsubmit: (event) => {
        event.preventDefault();
        const data = new FormData(event.target);
        const asked = `#/key/${encodeURIComponent(data.get("table").trim())}/${encodeURIComponent(data.get("key"))}`;
        if (asked === location.hash) reload();
        else location.hash = asked;
      },
    },
    h("label", { class: "wide" }, "Table", h("input", { name: "table", value: name, required: true, placeholder: "public.customer" })),
    h("label", { class: "wide" }, "Key", h("input", { name: "key", value: key, required: true, placeholder: '42 or {"id":42}' })),
    h("button", { type: "submit", class: "primary" }, "Follow"),
  );
}

function events(list) {
  const columns = [["tag"], ["operation"], ["when", "number"], ["partition", "number"], ["offset", "number"]];
  const words = { c: "insert", r: "copy", u: "update", d: "delete", t: "truncate", x: "left out" };
  const rows = list.map((one) => ({
    key: `${one.partition} ${one.offset}`,
    cells: [lsn(one.tag), words[one.op] ?? one.op, format.clock(one.time_ms), format.text(one.partition), format.count(one.offset)],
  }));
  return table("Events of the key", columns, rows, "The topic holds no event of this key.");
}

export default {
  name: "Follow a key",
  title: () => "Follow a key",
  load: {
    path: ([, key]) => (key ? "api/key" : null),
    parameters: ([name, key]) => ({ table: name, key }),
    every: 0,
  },
  render({ document, error, parameters: [name, key], reload }) {
    return [
      title("Follow a key", "The row at the source, its events on the topic, and what each sink holds."),
      panel(null, form(name, key, reload)),
      key && !document && panel(null, error ?? waiting("the row")),
      document &&
        h(
          "div",
          { class: "verdict", role: "status" },
          stateOf(document.is_right ? "right" : "differs"),
          h("p", null, sentence(document.verdict)),
          h("button", { type: "button", class: "small", onclick: reload }, "Look again"),
        ),
      document &&
        h(
          "div",
          { class: "columns" },
          panel("Source", rowOf(document.source.row), { note: h("span", null, "at ", lsn(document.source.lsn)) }),
          document.sinks.map((one) =>
            panel(one.sink, rowOf(one.row), {
              key: one.sink,
              note: h("span", null, "tag ", lsn(one.tag)),
              buttons: stateOf(one.state),
            }),
          ),
        ),
      document && panel("Events", events(document.events), { flush: true }),
    ];
  },
};
