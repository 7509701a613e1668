// Every action is confirmed first, and what the server answers is shown where it was asked for.

import { act, keepToken } from "./api.js";
import { h, patch } from "./dom.js";
import { sentence } from "./parts.js";

const dialog = document.getElementById("dialog");

/**
 * Ask whether an action shall be done, then do it and show the answer.
 *
 * `path` and `body` are what is sent. `title` is a question, `text` says what happens. `label` is the button's verb.
 */
export function confirmAction({ title, text, label, path, body, isDangerous = false, then }) {
  let answer = null;
  let isRunning = false;
  let isTokenNeeded = false;

  async function send(event) {
    event.preventDefault();
    if (isRunning) return;
    const given = dialog.querySelector("input[name=token]")?.value;
    if (given) keepToken(given);
    isRunning = true;
    answer = null;
    draw();
    try {
      const done = await act(path, body);
      answer = { isGood: done.ok !== false, text: done.message ?? "Done." };
      isTokenNeeded = false;
    } catch (error) {
      answer = { isGood: false, text: error.message };
      isTokenNeeded = error.isTokenWanted;
    }
    isRunning = false;
    draw();
    then?.();
  }

  function draw() {
    const isDone = answer?.isGood;
    patch(
      dialog,
      h(
        "form",
        { onsubmit: send },
        h("h2", { id: "dialog-title" }, title),
        h("p", null, sentence(text)),
        isTokenNeeded &&
          h(
            "label",
            null,
            "Token: LOCKSTEP_DASHBOARD_TOKEN of the server",
            h("input", { name: "token", type: "password", autocomplete: "off", required: true }),
          ),
        h(
          "div",
          { role: "status" },
          isRunning && h("p", { class: "answer" }, "Asking the server …"),
          answer && h("p", { class: `answer ${answer.isGood ? "good" : "bad"}` }, sentence(answer.text)),
        ),
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", key: "close", onclick: () => dialog.close() }, isDone ? "Close" : "Cancel"),
          !isDone &&
            h(
              "button",
              { type: "submit", key: "do", class: isDangerous ? "danger" : "primary", disabled: isRunning },
              answer ? `${label} once more` : label,
            ),
        ),
      ),
    );
  }

  draw();
  addEventListener("hashchange", () => dialog.close(), { once: true }); // it is about what another screen shows
  dialog.showModal();
  dialog.querySelector("button").focus();
}

