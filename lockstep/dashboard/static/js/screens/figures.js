// What each figure means.

import { DEFINITIONS } from "../definitions.js";
import { h } from "../dom.js";
import { panel, title } from "../parts.js";

export default {
  name: "What figures mean",
  title: () => "What figures mean",
  render() {
    return [
      title("What figures mean"),
      panel(
        null,
        h(
          "dl",
          { class: "definitions" },
          Object.entries(DEFINITIONS).map(([label, meaning]) => [h("dt", null, label), h("dd", null, meaning)]),
        ),
      ),
    ];
  },
};
