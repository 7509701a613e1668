// What a sink, or something that an extension writes to, has refused, by reason.

import { h } from "../dom.js";
import * as format from "../format.js";
import { commands, facts, lsn, panel, quoted, title, waiting } from "../parts.js";

function commandsOf({ sink, reason }) {
  const those = `${sink} --reason=${quoted(reason)}`;
  return commands([
    ["Apply all with this in their reason again", `lockstep rejections retry ${those}`],
    ["Give them up for good", `lockstep rejections discard ${those}`],
  ]);
}

export default {
  name: "Rejections",
  title: () => "Rejections",
  load: { path: () => "api/rejections", every: 5000 },
  render({ state, document, error }) {
    const intro = title("Rejections", "What was refused for good. Nothing was skipped: each is kept until you decide.");
    if (!document) return [intro, panel(null, error ?? waiting("the rejections"))];
    if (!document.reasons.length) return [intro, panel(null, h("p", { class: "empty" }, "Nothing was refused."))];
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
            // What an extension writes has no table at the source.
            state.sinks.some((sink) => sink.name === one.sink) &&
              h(
                "a",
                { href: `#/key/${encodeURIComponent(one.example.table)}/${encodeURIComponent(one.example.key)}` },
                "Follow this key",
              ),
            commandsOf(one),
          ],
          { key: `${one.sink} ${one.reason}` },
        ),
      ),
    ];
  },
};
