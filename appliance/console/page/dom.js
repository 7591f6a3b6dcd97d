// Makes elements and formats values.  Text only ever becomes text nodes: nothing here can make markup from a string.

/** An element.  `props`: class, text, on (events), aria/data/other attributes; null and false are left out. */
export function el(name, props = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else if (key === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Sets the text of an element only when it differs, so that selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const UNKNOWN = "–";

export const count = (value) => (value === null || value === undefined ? UNKNOWN : whole.format(value));
export const compact = (value) =>
  value === null || value === undefined ? UNKNOWN : value < 10000 ? whole.format(value) : short.format(value);

export function size(bytes) {
  if (bytes === null || bytes === undefined) return UNKNOWN;
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? whole.format(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export const rate = (value, show) => (value === null || value === undefined ? UNKNOWN : `${show(value)}/s`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const steps = [["d", 86400], ["h", 3600], ["min", 60]];
  for (const [name, length] of steps) {
    if (seconds >= length * 2) return `${Math.floor(seconds / length)} ${name}`;
  }
  return `${seconds >= 10 || Number.isInteger(seconds) ? Math.round(seconds) : seconds.toFixed(1)} s`;
}

export function moment(ms) {
  if (ms === null || ms === undefined || ms < 0) return UNKNOWN;
  const at = new Date(ms);
  const two = (value, digits = 2) => String(value).padStart(digits, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
}

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
export const ago = (startedS) => (startedS ? duration(Date.now() / 1000 - startedS) : UNKNOWN);

/** The address of a view: `route("topics", name)`. */
export const route = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** A word for a state with a coloured dot; the word is there for those who do not see the colour. */
export function badge(state) {
  const good = ["online", "stable", "serving", "connected", "off"];
  const calm = ["empty", "elsewhere"];
  const kind = good.includes(state) ? "good" : calm.includes(state) ? "calm" : state === "offline" ? "bad" : "warn";
  return el("span", { class: `badge ${kind}`, text: state });
}

export function empty(title, ...more) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title", text: title }), ...more);
}
