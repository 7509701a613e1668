// Values as people read them. A value that isn't known is a dash, never a zero.

export const UNKNOWN = "–";

const NUMBER = new Intl.NumberFormat("en-US");
const ONE_DIGIT = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

function isKnown(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}

export function count(value) {
  return isKnown(value) ? NUMBER.format(Math.round(value)) : UNKNOWN;
}

export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  let rest = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(rest) < 1024) return unit === "B" ? `${Math.round(rest)} B` : `${ONE_DIGIT.format(rest)} ${unit}`;
    rest /= 1024;
  }
  return `${ONE_DIGIT.format(rest)} TiB`;
}

/** A rate with its unit: `1,203 events/s`. */
export function rate(value, unit) {
  if (!isKnown(value)) return UNKNOWN;
  return `${value > 0 && value < 10 ? ONE_DIGIT.format(value) : NUMBER.format(Math.round(value))} ${unit}/s`;
}

export function byteRate(value) {
  return isKnown(value) ? `${bytes(value)}/s` : UNKNOWN;
}

/** A distance in time: `0.3 s`, `12 s`, `4 min`, `3 h 20 min`, `2 d 4 h`. */
export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 10) return `${ONE_DIGIT.format(value)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.round((value % 86400) / 3600)} h`;
}

export function milliseconds(value) {
  return isKnown(value) ? `${count(value)} ms` : UNKNOWN;
}

export function minutes(value) {
  return isKnown(value) ? seconds(value * 60) : UNKNOWN;
}

export function percent(part, whole) {
  if (!isKnown(part) || !isKnown(whole) || whole <= 0) return UNKNOWN;
  return `${Math.min(100, Math.floor((100 * part) / whole))} %`;
}

function pad(value) {
  return String(value).padStart(2, "0");
}

/** The time of day of this browser, with the day where it isn't today's. Milliseconds since 1970. */
export function clock(ms) {
  if (!isKnown(ms) || ms <= 0) return UNKNOWN;
  const at = new Date(ms);
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

export function text(value) {
  return isKnown(value) && value !== "" ? String(value) : UNKNOWN;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
