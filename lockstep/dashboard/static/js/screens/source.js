// The source's server, its slot, and what doctor finds.

import { h } from "../dom.js";
import * as format from "../format.js";
import { copied, facts, lsn, panel, sentence, stateOf, title, waiting } from "../parts.js";

const STRIPES = { error: "bad", warning: "warn" };

function finding(one) {
  return h(
    "li",
    { class: `problem ${STRIPES[one.severity]}` },
    stateOf(one.severity),
    h("div", null, h("p", null, h("strong", null, `${one.subject}: `), sentence(one.message)), one.sql && copied(one.sql)),
  );
}

/** Errors first, then warnings; what is fine can be unfolded. */
function findings(found) {
  const of = (severity) => found.filter((one) => one.severity === severity);
  const fine = found.filter((one) => !(one.severity in STRIPES));
  return [
    h("ul", { class: "problems" }, [...of("error"), ...of("warning")].map(finding)),
    fine.length > 0 &&
      h(
        "details",
        null,
        h("summary", null, `${format.plural(fine.length, "check")} found nothing to do`),
        h(
          "ul",
          { class: "checks" },
          fine.map((one) => h("li", null, h("strong", null, `${one.subject}: `), sentence(one.message))),
        ),
      ),
  ];
}

export default {
  name: "Source and slot",
  title: () => "Source and slot",
  load: { path: () => "api/findings", every: 30_000 },
  render({ state, document, error, reload }) {
    const { source, capture } = state;
    const counts = (severity) => document.findings.filter((one) => one.severity === severity).length;
    return [
      title("Source and slot"),
      panel(
        source.database ?? "Source",
        facts([
          ["Server", source.server],
          ["WAL end", lsn(source.wal_end)],
          ["WAL rate", format.byteRate(source.wal_bytes_per_s)],
        ]),
      ),
      panel(
        `Slot ${source.slot}`,
        facts([
          ["WAL status", stateOf(source.wal_status)],
          ["Confirmed", lsn(source.confirmed_lsn)],
          ["Capture commits every", format.milliseconds(capture.commit_interval_ms)],
          ["Retained WAL", format.bytes(source.retained_bytes)],
          ["Room left", format.bytes(source.safe_wal_bytes)],
          ["Slot is full in", format.minutes(source.minutes_until_full)],
        ]),
      ),
      panel("What doctor finds", error ?? (document ? findings(document.findings) : waiting("doctor's findings")), {
        note:
          document &&
          `${format.plural(counts("error"), "error")}, ${format.plural(counts("warning"), "warning")}, looked at ${format.clock(document.checked_ms)}`,
        buttons: h("button", { type: "button", class: "small", onclick: reload }, "Look again"),
      }),
    ];
  },
};
