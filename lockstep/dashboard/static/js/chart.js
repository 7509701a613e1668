// The last hour as a line. uPlot draws on a canvas, so colours are asked of the style sheet whenever it draws.

import { seconds } from "./format.js";

const HEIGHT = 220;
const HOUR_S = 3600;
let loading = null;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Draw points `[seconds since 1970, seconds behind]` into an element, or move them on in the chart that it has. */
export async function drawLag(place, points) {
  loading ??= import("../vendor/uPlot.esm.js");
  const { default: UPlot } = await loading;
  if (!place.isConnected) return;
  const data = [points.map(([at]) => at), points.map(([, behind]) => behind)];
  describe(place, data[1]);
  if (place.lockstepChart) {
    place.lockstepChart.setData(data);
    return;
  }
  const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  const chart = new UPlot(
    {
      width: Math.max(200, place.clientWidth),
      height: HEIGHT,
      scales: { x: { range: (_, first, last) => [(last ?? 0) - HOUR_S, last ?? HOUR_S] }, y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.15] } },
      series: [
        { label: "at", value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString() : "–") },
        {
          label: "behind",
          stroke: () => colour("--accent"),
          fill: () => colour("--accent-soft"),
          width: 1.5,
          points: { show: false },
          value: (_, value) => seconds(value),
        },
      ],
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toTimeString().slice(0, 5)), space: 70 },
        { ...axis, values: (_, ticks) => ticks.map((value) => `${value} s`), size: 52 },
      ],
      cursor: { drag: { x: false, y: false } },
    },
    data,
    place,
  );
  place.lockstepChart = chart;
  new ResizeObserver(() => {
    if (place.clientWidth > 0) chart.setSize({ width: place.clientWidth, height: HEIGHT });
  }).observe(place);
  addEventListener("themechange", () => place.isConnected && chart.redraw());
}

/** What the line says, for those who can't see it. */
function describe(place, behind) {
  const known = behind.filter((value) => value !== null);
  place.setAttribute("role", "img");
  const worst = known.length ? `at most ${seconds(Math.max(...known))}, now ${seconds(known.at(-1))}` : "unknown";
  place.setAttribute("aria-label", `Seconds behind over the last hour: ${worst}`);
}
