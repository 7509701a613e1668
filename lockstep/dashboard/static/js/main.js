// Which screen is shown, and that it is drawn again when something is new.

import { read } from "./api.js";
import { h, patch } from "./dom.js";
import * as format from "./format.js";
import { sentence, severity, stateOf } from "./parts.js";
import alerts from "./screens/alerts.js";
import copies from "./screens/copies.js";
import figures from "./screens/figures.js";
import key from "./screens/key.js";
import pipeline from "./screens/pipeline.js";
import rejections from "./screens/rejections.js";
import sink from "./screens/sink.js";
import source from "./screens/source.js";
import tables from "./screens/tables.js";
import tail from "./screens/tail.js";
import verify from "./screens/verify.js";
import { follow } from "./stream.js";
import { toggleThemeBy } from "./theme.js";

const SCREENS = { "": pipeline, source, tables, sink, copies, key, rejections, verify, alerts, tail, figures };
const OLD_S = 5; // samples are taken once a second
const NARROWEST = 260; // before the style sheet is there, nothing has a width
const ROOT = document.documentElement;
const main = document.getElementById("main");

let state = null;
let lostMs = null;
let movedMs = Date.now(); // when a newer sample than the one before came, by this browser's clock
let shown = { screen: null, parameters: [], address: null };
let documentShown = null;
let failure = null;
let timer = null;

/* Routes */

/** A part of the address. Somebody may have typed it: what isn't encoded as it should be is taken as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function screenOf(name, parameters) {
  const screen = Object.hasOwn(SCREENS, name) ? SCREENS[name] : pipeline;
  return screen.isOfOne && !parameters[0] ? pipeline : screen;
}

function route() {
  const [name, ...parameters] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const screen = screenOf(name, parameters);
  const address = `${name}/${parameters.join("/")}`;
  if (address === shown.address) return;
  const isFirst = shown.screen === null;
  shown.screen?.leave?.();
  shown = { screen, parameters, address };
  documentShown = null;
  failure = null;
  closeMenu();
  load();
  draw();
  if (!isFirst) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

async function load() {
  clearTimeout(timer);
  const { screen, parameters, address } = shown;
  const path = screen.load?.path(parameters);
  if (!path) return;
  try {
    const answer = await read(path, screen.load.parameters?.(parameters));
    if (address !== shown.address) return;
    documentShown = answer;
    failure = null;
  } catch (error) {
    if (address !== shown.address) return;
    failure = error.message;
  }
  draw();
  clearTimeout(timer);
  if (screen.load.every) timer = setTimeout(() => (document.hidden ? waitUntilSeen() : load()), screen.load.every);
}

function waitUntilSeen() {
  document.addEventListener("visibilitychange", load, { once: true });
}

/* Drawing */

function badge(number, kind) {
  return number > 0 && h("span", { class: `badge ${kind}` }, format.count(number));
}

function link(address, label, extra, properties = {}) {
  const here = `#/${shown.address === "/" ? "" : shown.address?.replace(/\/$/, "")}`;
  return h("li", { key: address, ...properties }, h("a", { href: address, "aria-current": address === here && "page" }, h("span", null, label), extra));
}

function navigation() {
  const sinks = [...new Set((state?.sinks ?? []).map((one) => one.name))];
  const bySinks = (state?.sinks ?? []).reduce((sum, one) => sum + (one.open_rejections ?? 0), 0);
  const rejected = bySinks + (state?.other_rejections ?? 0);
  const troubled = (name) => state.sinks.some((one) => one.name === name && ["bad", "warn"].includes(severity(one.state)));
  return h(
    "ul",
    null,
    link("#/", "Pipeline", badge(state?.problems.length, "bad")),
    link("#/source", "Source and slot"),
    link("#/tables", "Tables"),
    sinks.length > 0 && h("li", { class: "group", key: "sinks" }, "Sinks"),
    sinks.map((name, index) =>
      link(
        `#/sink/${encodeURIComponent(name)}`,
        name,
        troubled(name) && h("span", { class: "badge bad", title: "isn't well" }, "!"),
        index === sinks.length - 1 ? { class: "group-end" } : {},
      ),
    ),
    link("#/copies", "Copies and rebuilds"),
    link("#/key", "Follow a key"),
    link("#/rejections", "Rejections", badge(rejected, "warn")),
    link("#/verify", "Verify"),
    link("#/alerts", "Alerts and log", badge(state?.open_alerts, "warn")),
    link("#/tail", "Live tail"),
    link("#/figures", "What figures mean"),
  );
}

function context() {
  const error = failure && h("p", { class: "empty", role: "alert" }, sentence(failure));
  return {
    state,
    document: documentShown,
    error,
    parameters: shown.parameters,
    width: Math.max(NARROWEST, main.clientWidth - 2 * Number.parseFloat(getComputedStyle(main).paddingLeft)),
    redraw: draw,
    reload: load,
  };
}

/** One word about the figures. A server of the pipeline that hangs holds the next sample up: then it says how old. */
function connection() {
  if (lostMs !== null) return stateOf("lost", "not connected");
  if (!state) return "connecting";
  const ageS = (Date.now() - movedMs) / 1000;
  return ageS > OLD_S ? stateOf("warning", `${format.seconds(ageS)} old`) : stateOf("running", "live");
}

function drawConnection() {
  const lost = document.getElementById("lost");
  if (lostMs === null) {
    ROOT.dataset.connection = "live";
    patch(lost);
  } else {
    ROOT.dataset.connection = "lost";
    patch(lost, `No connection since ${format.clock(lostMs)}. The figures are from then. The page connects again by itself.`);
  }
  patch(document.getElementById("connection"), connection());
}

function draw() {
  patch(document.getElementById("screens"), navigation());
  document.title = `${shown.screen.title(shown.parameters)} – ${state?.pipeline ?? "Lockstep"}`;
  if (!state) {
    patch(main, h("p", { class: "empty", role: "status" }, "Asking for the pipeline's state …"));
    return;
  }
  document.getElementById("pipeline-name").textContent = state.pipeline;
  const drawn = context();
  patch(main, h("div", { key: shown.address, class: "screen" }, shown.screen.render(drawn)));
  shown.screen.after?.(drawn, main);
}

/* The menu of a phone, and the skip link */

const menu = document.getElementById("menu");
const screens = document.getElementById("screens");

function closeMenu() {
  delete screens.dataset.open;
  menu.setAttribute("aria-expanded", "false");
}

menu.addEventListener("click", () => {
  const isOpen = "open" in screens.dataset;
  if (isOpen) closeMenu();
  else {
    screens.dataset.open = "";
    menu.setAttribute("aria-expanded", "true");
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !("open" in screens.dataset)) return;
  closeMenu();
  menu.focus();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which screen is shown
  main.focus();
});

/* It begins */

toggleThemeBy(document.getElementById("theme"));
addEventListener("hashchange", route);
new ResizeObserver(() => requestAnimationFrame(draw)).observe(main);
route();
drawConnection();
setInterval(drawConnection, 1000); // the figures get older also while nothing comes
follow("api/events", {
  onState(document) {
    if (document.sampled_ms !== state?.sampled_ms) movedMs = Date.now();
    state = document;
    drawConnection();
    draw();
  },
  onConnection(ms) {
    lostMs = ms;
    drawConnection();
    if (ms === null && failure !== null) load(); // it may have failed for that
  },
});
