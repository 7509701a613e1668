// All tables: a filter, and no more rows than a page can hold.

import { confirmAction } from "../dialog.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { button, panel, stateOf, table, title, waiting } from "../parts.js";

const AT_ONCE = 50;
let filter = "";
let shown = AT_ONCE;

const COLUMNS = [
  ["table", "wraps"],
  ["state"],
  ["rate", "number"],
  ["shape", "number"],
  ["actions", "actions"],
];

function copyAnew(name) {
  confirmAction({
    title: `Copy ${name} anew?`,
    text: "Every row is read again and published in order with the stream. Sinks keep their rows meanwhile.",
    label: "Copy",
    path: "api/actions/copy",
    body: { table: name },
  });
}

function verify(name) {
  confirmAction({
    title: `Verify ${name}?`,
    text: "Every row of the table is compared in each sink. This reads the whole table.",
    label: "Verify",
    path: "api/actions/verify",
    body: { table: name },
  });
}

function row(one) {
  return {
    key: one.table,
    cells: [
      h("a", { href: `#/tables/${encodeURIComponent(one.table)}` }, one.table),
      stateOf(one.state),
      format.rate(one.events_per_s, "events"),
      format.text(one.schema_id),
      h(
        "div",
        { class: "buttons" },
        button("Copy anew", () => copyAnew(one.table), { class: "small", "aria-label": `Copy ${one.table} anew` }),
        button("Verify", () => verify(one.table), { class: "small", "aria-label": `Verify ${one.table}` }),
      ),
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
      title(
        name,
        h("a", { href: "#/tables" }, "All tables"),
        button("Copy anew", () => copyAnew(name)),
        button("Verify", () => verify(name)),
      ),
      panel("Schema history", document ? shapes(document) : (error ?? waiting("its shapes")), { flush: true }),
    ];
  },
};
