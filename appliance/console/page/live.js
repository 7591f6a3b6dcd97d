// Keeps a copy of what the server shows, by server-sent events.  `sections` has section → Map of key → row.
//
//   state        leaves it by
//   closed       look(), or the page is seen again
//   connecting   the first event: live;  an error: waiting
//   live         an error: waiting;  the page is hidden: closed
//   waiting      RETRY_MS later: connecting

const RETRY_MS = 3000;
const listeners = new Set();
let source = null;
let timer = 0;
let wanted = false;
let focus = { topic: "", group: "" };

export const sections = new Map();
export const connection = { state: "closed", at: 0, rated: false };
export const history = [];
const HISTORY_MAX = 150;

/** The rows of a section. */
export function rows(section) {
  return sections.get(section) || new Map();
}

/** Bytes per second into a topic; null while rates are not known. */
export function rateOf(topic) {
  return connection.rated ? topic.bytes_per_s ?? 0 : null;
}

/** Calls `listener` after every change; returns a function that ends it. */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Looks at a topic or a group in particular, from now on. */
export function look(topic = "", group = "") {
  if (focus.topic !== topic || focus.group !== group) {
    focus = { topic, group };
    for (const section of ["partitions", "readers", "group"]) sections.delete(section);
    disconnect();
  }
  wanted = true;
  if (!source && !document.hidden) open();
}

/** Stops looking. */
export function close() {
  wanted = false;
  disconnect();
}

function open() {
  disconnect();
  connection.state = "connecting";
  const query = new URLSearchParams(Object.entries(focus).filter(([, value]) => value));
  source = new EventSource(`api/events?${query}`);
  let first = true;
  source.onmessage = (event) => {
    if (first) sections.clear();
    first = false;
    const found = JSON.parse(event.data);
    take(found);
    if (found.more) return;
    connection.state = "live";
    notify();
  };
  source.onerror = () => {
    disconnect();
    connection.state = "waiting";
    timer = setTimeout(open, RETRY_MS);
    notify();
  };
}

function disconnect() {
  clearTimeout(timer);
  if (source) source.close();
  source = null;
  connection.state = "closed";
}

function take(event) {
  connection.at = event.at;
  connection.rated = event.rated;
  for (const [section, found] of Object.entries(event.set)) {
    if (!sections.has(section)) sections.set(section, new Map());
    for (const [key, row] of Object.entries(found)) sections.get(section).set(key, row);
  }
  for (const [section, keys] of Object.entries(event.gone)) {
    for (const key of keys) sections.get(section)?.delete(key);
  }
  const whole = event.more ? null : rows("appliance").get("");
  if (whole && whole.bytes_per_s !== null) {
    history.push({ at: event.at, bytes: whole.bytes_per_s, messages: whole.messages_per_s });
    history.splice(0, history.length - HISTORY_MAX);
  }
}

function notify() {
  for (const listener of [...listeners]) listener();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) disconnect();
  else if (wanted) open();
});
