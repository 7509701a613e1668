// Conditions that are open, and what happened before.

import { h } from "../dom.js";
import * as format from "../format.js";
import { panel, problem, sentence, title, waiting } from "../parts.js";

export default {
  name: "Alerts and log",
  title: () => "Alerts and log",
  load: { path: () => "api/alerts", every: 3000 },
  render({ state, document, error }) {
    if (!document) return [title("Alerts and log"), panel(null, error ?? waiting("the log"))];
    const open = document.open.map(({ where, condition, since_ms, message }) => {
      return { where, state: "warning", word: condition, since_ms, reason: message };
    });
    return [
      title("Alerts and log"),
      panel(
        "Open",
        open.length
          ? h("ul", { class: "problems" }, open.map((one) => problem(one, state.sampled_ms)))
          : h("p", { class: "quiet" }, "No condition is open."),
      ),
      panel(
        "Log",
        document.log.length
          ? h(
              "ol",
              { class: "log" },
              document.log.map((one) =>
                h(
                  "li",
                  { key: `${one.time_ms} ${one.message}` },
                  h("time", { datetime: new Date(one.time_ms).toISOString() }, format.clock(one.time_ms)),
                  h("p", null, h("strong", null, one.kind), " ", sentence(one.message)),
                ),
              ),
            )
          : h("p", { class: "empty" }, "Nothing has happened yet."),
        { flush: true },
      ),
    ];
  },
};
