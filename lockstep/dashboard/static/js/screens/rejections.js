// Events that a sink refused, and rows that the webhook of a stream query refused, by reason.

import { confirmAction } from "../dialog.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { button, facts, lsn, panel, title, waiting } from "../parts.js";

function act(action, one) {
  const isRetry = action === "retry";
  confirmAction({
    title: isRetry ? `Try ${format.plural(one.count, "event")} again?` : `Discard ${format.plural(one.count, "event")}?`,
    text: isRetry
      ? `${one.sink} is given the rows again. What it refuses again stays here.`
      : `${one.sink} will never have these rows in this version. They aren't shown any more.`,
    label: isRetry ? "Retry" : "Discard",
    path: `api/actions/${action}`,
    body: { sink: one.sink, reason: one.reason },
    isDangerous: !isRetry,
  });
}

export default {
  name: "Rejections",
  title: () => "Rejections",
  load: { path: () => "api/rejections", every: 5000 },
  render({ state, document, error }) {
    const intro = title("Rejections", "Events that a sink, or a stream query's webhook, refused for good. Nothing was skipped: each is kept until you decide.");
    if (!document) return [intro, panel(null, error ?? waiting("the rejections"))];
    if (!document.reasons.length) return [intro, panel(null, h("p", { class: "empty" }, "No sink and no webhook has refused anything."))];
    return [
      intro,
      document.reasons.map((one) =>
        panel(
          `${one.sink}: ${format.plural(one.count, "event")}`,
          [
            h("p", { class: "wraps" }, one.reason),
            facts([
              ["First", format.clock(one.first_ms)],
              ["Last", format.clock(one.last_ms)],
              ["Example", `${one.example.table} ${one.example.key}`],
              ["Tag", lsn(one.example.tag)],
            ]),
            // A row of a stream query has no table at the source.
            state.sinks.some((sink) => sink.name === one.sink) &&
              h(
                "a",
                { href: `#/key/${encodeURIComponent(one.example.table)}/${encodeURIComponent(one.example.key)}` },
                "Follow this key",
              ),
          ],
          {
            key: `${one.sink} ${one.reason}`,
            buttons: [
              button("Retry", () => act("retry", one), { class: "small" }),
              button("Discard", () => act("discard", one), { class: "small danger" }),
            ],
          },
        ),
      ),
    ];
  },
};
