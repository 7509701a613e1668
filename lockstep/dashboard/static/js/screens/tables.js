// All tables: a filter, and no more rows than a page can hold.

import { h } from "../dom.js";
import * as format from "../format.js";
import { button, commands, panel, quoted, stateOf, table, title, waiting } from "../parts.js";

const AT_ONCE = 50;
let filter = "";
let shown = AT_ONCE;

const COLUMNS = [
  ["table", "wraps"],
  ["state"],
  ["rate", "number"],
  ["shape", "number"],
];

function row(one) {
  return {
    key: one.table,
    cells: [
      h("a", { href: `#/tables/${encodeURIComponent(one.table)}` }, one.table),
      stateOf(one.state),
      format.rate(one.events_per_s, "events"),
      format.text(one.schema_id),
    ],
  };
}

function list({ document, error, redraw }) {
  if (!document) return error ?? waiting("the tables");
  const wanted = filter.toLowerCase();
  const matching = document.tables.filter((one) => one.table.toLowerCase().includes(wanted));
  const rows = matching.slice(0, shown).map(row);
  return [
    h(
      "div",
      { class: "inside fields" },
      h(
        "label",
        { class: "wide" },
        "Name contains",
        h("input", {
          type: "search",
          name: "filter",
          value: filter,
          oninput: (event) => {
            filter = event.target.value;
            shown = AT_ONCE;
            redraw();
          },
        }),
      ),
      h("p", { class: "quiet small", role: "status" }, `${format.plural(matching.length, "table")}, ${format.count(rows.length)} shown`),
    ),
    table("Tables", COLUMNS, rows, filter ? "No table has that in its name." : "No table is captured yet."),
    matching.length > shown &&
      h(
        "p",
        { class: "empty" },
        button(`Show ${Math.min(AT_ONCE, matching.length - shown)} more`, () => {
          shown += AT_ONCE;
          redraw();
        }),
      ),
  ];
}

function shapes(document) {
  const columns = [["shape"], ["from", "number"], ["columns", "number"], ["change", "wraps"]];
  const rows = document.versions.map((one) => ({
    key: one.schema_id,
    cells: [one.schema_id, h("span", { class: "lsn" }, one.lsn), format.count(one.columns), one.change],
  }));
  return table("Shapes of the table", columns, rows, "No shape is known yet.");
}

export default {
  name: "Tables",
  title: ([name]) => name ?? "Tables",
  load: {
    path: ([name]) => (name ? "api/schemas" : "api/tables"),
    parameters: ([name]) => (name ? { table: name } : {}),
    every: 3000,
  },
  render(context) {
    const [name] = context.parameters;
    if (!name) return [title("Tables"), panel(null, list(context), { flush: true })];
    const { document, error } = context;
    return [
      title(name, h("a", { href: "#/tables" }, "All tables")),
      panel("Schema history", document ? shapes(document) : (error ?? waiting("its shapes")), { flush: true }),
      panel("Commands", commands([
        ["Read every row again, in order with the stream", `lockstep snapshot table ${quoted(name)}`],
        ["Hold up that copy", `lockstep snapshot pause ${quoted(name)}`],
        ["Let it go on", `lockstep snapshot resume ${quoted(name)}`],
        ["Give it up", `lockstep snapshot cancel ${quoted(name)}`],
      ])),
    ];
  },
};
