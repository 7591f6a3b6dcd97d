// Searches the messages of one topic, or of several, in bounded steps, and shows them.  What a message contains is only
// ever text.

import { download, get, post } from "./api.js";
import { compact, count, el, empty, moment, plural, route, size } from "./dom.js";
import { rows } from "./live.js";
import { session } from "./session.js";

const STEPS_MAX = 40;
const FOLLOW_MS = 1000;
const FOLLOWED_MAX = 1000;
const FORMATS = [["csv", "Download as CSV"], ["jsonl", "Download as JSON lines"]];
/** The fields that the address has. */
const KEPT = ["topics", "start", "time", "offset", "partition", "until", "key", "text", "match", "field"];
const STARTS = [["newest", "Newest first"], ["oldest", "Oldest first"], ["time", "From a time"], ["offset", "From an offset"], ["follow", "Live"]];

/** The view that searches several topics. */
export function searchOfTopics(query) {
  const heading = el("h1", { tabindex: "-1", text: "Search" });
  const about = el("p", { class: "about", text: "In several topics at once, 20 at most: names with commas between, * for any characters." });
  const view = messages(null, query);
  return { element: el("div", {}, heading, about, view.element), heading, title: "Search", update: view.update, close: view.close };
}

/** A search of a topic; null: of those that the visitor names. */
export function messages(topic, query) {
  const form = new Form(topic, query);
  const list = el("ol", { class: topic === null ? "messages named" : "messages" });
  const status = el("p", { class: "status", role: "status" });
  const more = el("button", { type: "button", text: "Load more", hidden: true });
  const stop = el("button", { type: "button", text: "Stop", hidden: true });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const saved = el("p", { class: "status", role: "status" });
  const saves = FORMATS.map(([format, label]) => el("button", { type: "button", text: label, on: { click: () => save(format) } }));
  let saving = null;
  let running = null;
  let cursor = "";
  let asked = null;
  let scanned = 0;
  let bytes = 0;
  let shown = 0;

  async function search(fresh) {
    running?.abort();
    const mine = (running = new AbortController());
    if (fresh) {
      asked = form.read();
      list.replaceChildren();
      cursor = "";
      scanned = bytes = shown = 0;
    }
    problem.hidden = true;
    more.hidden = true;
    stop.hidden = false;
    if (asked.follow) {
      await follow(mine);
      return;
    }
    let wanted = asked.limit;
    try {
      for (let step = 0; step < STEPS_MAX && wanted > 0; step += 1) {
        const found = await get("api/messages", { ...asked, limit: wanted, cursor }, mine.signal);
        list.append(...found.messages.map((message) => item(message, topic === null)));
        wanted -= found.messages.length;
        shown += found.messages.length;
        scanned += found.scanned;
        bytes += found.scanned_bytes;
        cursor = found.cursor;
        report(found);
        if (!cursor) break;
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    }
    if (running !== mine) return;
    running = null;
    stop.hidden = true;
    more.hidden = !cursor;
    if (!cursor && !shown && problem.hidden) {
      const filtered = asked.key || asked.text || asked.match || asked.field || asked.until_ms;
      list.replaceChildren(el("li", {}, empty(filtered ? "No message matches." : "There are no messages here.", el("p", { text: `${plural(scanned, "message")} read.` }))));
    }
  }

  /** Shows what arrives, the newest above, until somebody stops it. */
  async function follow(mine) {
    while (running === mine && !mine.signal.aborted) {
      try {
        const found = await get("api/messages", { ...asked, cursor }, mine.signal);
        list.prepend(...found.messages.map((message) => item(message, topic === null)).reverse());
        while (list.childElementCount > FOLLOWED_MAX) list.lastElementChild.remove();
        shown += found.messages.length;
        scanned += found.scanned;
        bytes += found.scanned_bytes;
        cursor = found.cursor;
        status.textContent = `Live · ${plural(shown, "message")} shown · ${compact(scanned)} read (${size(bytes)})`;
        problem.hidden = true;
        unread(found);
        if (found.messages.length === asked.limit) continue;
      } catch (error) {
        if (error.name === "AbortError") break;
        problem.textContent = error.message;
        problem.hidden = false;
        if (error.status && error.status < 500) break;
      }
      await new Promise((resolve) => { setTimeout(resolve, FOLLOW_MS); });
    }
    if (running !== mine) return;
    running = null;
    stop.hidden = true;
    if (mine.signal.aborted) status.textContent = `Stopped · ${plural(shown, "message")} shown`;
  }

  /** Downloads what the search of the fields finds. */
  async function save(format) {
    const { follow: live, limit, ...wanted } = form.read();
    saving?.abort();
    const mine = (saving = new AbortController());
    saved.textContent = live ? "What arrives is not downloaded: choose another beginning." : "Searching for the file…";
    if (live) return;
    try {
      const file = await download("api/download", { ...wanted, format }, mine.signal);
      const link = el("a", { href: URL.createObjectURL(file.blob), download: `${topic ?? "messages"}.${format}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), FOLLOW_MS);
      const rest = file.complete ? "all that was found" : "not all: look for less, or begin at another time";
      saved.textContent = `${plural(file.messages, "message")} (${size(file.blob.size)}) downloaded, ${rest}.`;
    } catch (error) {
      if (error.name !== "AbortError") saved.textContent = error.message;
    }
  }

  function unread(found) {
    const unreadable = Object.entries(found.unreadable);
    if (unreadable.length) {
      problem.textContent = `Not read: ${unreadable.map(([partition, why]) => `${partition}: ${why}`).join("; ")}`;
      problem.hidden = false;
    }
  }

  function report(found) {
    const parts = [`${plural(shown, "message")} shown`, `${compact(scanned)} read (${size(bytes)})`];
    if (found.cursor && found.reached_ms !== null) parts.push(`${asked.order === "newest" ? "back" : "up"} to ${moment(found.reached_ms)}`);
    if (!found.cursor) parts.push("everything is read");
    if (found.damaged) parts.push(`${plural(found.damaged, "damaged batch")} skipped`);
    if (found.too_costly) parts.push(`skipped since the expression would take too long for values so large: ${count(found.too_costly)}`);
    if (found.too_large) parts.push(`skipped since they unpack to more than 16 MiB: ${count(found.too_large)}`);
    status.textContent = parts.join(" · ");
    unread(found);
  }

  form.element.addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", form.address());
    search(true);
  });
  more.addEventListener("click", async () => {
    const last = list.lastElementChild;
    await search(false);
    (last?.nextElementSibling?.querySelector("summary") || more).focus();
  });
  stop.addEventListener("click", () => running?.abort());
  if (topic !== null || form.element.checkValidity()) search(true);
  const update = () => { if (topic !== null) form.update(rows("topics").get(topic)); };
  const parts = [form.element, topic === null ? null : produceForm(topic, () => search(true)), status, problem, list, el("p", { class: "actions" }, stop, more, ...saves), saved];
  return { element: el("div", {}, ...parts.filter(Boolean)), update, close: () => { running?.abort(); saving?.abort(); } };
}

/** The fields of a search; the address of the page has them, so that a search can be kept and sent. */
class Form {
  constructor(topic, query) {
    this.topic = topic;
    const field = (name, label, input) => el("label", { class: `field field-${name}` }, el("span", { text: label }), input);
    const select = (name, options) => el("select", { name }, ...options.map(([value, text]) => el("option", { value, text })));
    const text = (name, more = {}) => el("input", { name, autocomplete: "off", spellcheck: "false", maxlength: "1000", ...more });
    this.start = select("start", topic === null ? STARTS.filter(([value]) => value !== "offset") : STARTS);
    this.partition = select("partition", [["", "All"]]);
    this.time = el("input", { type: "datetime-local", name: "time", step: "1" });
    this.offset = text("offset", { inputmode: "numeric", pattern: "[0-9]{1,19}" });
    this.topics = text("topics", { required: true, maxlength: "4000", placeholder: "web, app-*", pattern: "[a-zA-Z0-9._*\\-]+(, ?[a-zA-Z0-9._*\\-]+)*", title: "names of topics with commas between, * for any characters" });
    this.key = text("key");
    this.text = text("text", { type: "search", id: "search" });
    this.match = text("match");
    this.field = text("field", { placeholder: "status=500", pattern: "[^=]+=.*" });
    this.until = el("input", { type: "datetime-local", name: "until", step: "1" });
    this.untilField = field("until", "Until", this.until);
    this.timeField = field("time", "Time", this.time);
    this.offsetField = field("offset", "Offset", this.offset);
    this.element = el("form", { class: "search", role: "search", "aria-label": topic === null ? "Search topics" : `Search ${topic}` },
      topic === null ? field("topics", "Topics", this.topics) : null,
      field("text", "Value contains", this.text), field("key", "Key contains", this.key), field("match", "Value matches (regular expression)", this.match), field("field", "Field, NAME=TEXT", this.field), field("start", "Begin", this.start),
      this.timeField, this.offsetField, this.untilField, topic === null ? null : field("partition", "Partition", this.partition),
      el("button", { type: "submit", class: "primary", text: "Search" }));
    this.start.addEventListener("change", () => this.adapt());
    for (const name of KEPT) {
      if (query.get(name) && name !== "partition") this[name].value = query.get(name);
    }
    this.wanted = query.get("partition") || "";
    if (this.wanted) this.setPartitions(Number(this.wanted) + 1);
    this.adapt();
  }

  adapt() {
    this.timeField.hidden = this.start.value !== "time";
    this.offsetField.hidden = this.start.value !== "offset";
    this.time.required = this.start.value === "time";
    this.untilField.hidden = this.start.value === "follow";
    this.offset.required = this.partition.required = this.start.value === "offset";
  }

  update(row) {
    if (row && this.partition.options.length !== row.partitions + 1) this.setPartitions(row.partitions);
  }

  setPartitions(number) {
    const chosen = this.partition.value || this.wanted;
    const options = Array.from({ length: number }, (_, index) => el("option", { value: String(index), text: String(index) }));
    this.partition.replaceChildren(el("option", { value: "", text: "All" }), ...options);
    this.partition.value = chosen;
  }

  read() {
    const start = this.start.value;
    return {
      topics: this.topic ?? this.topics.value,
      partition: this.partition.value,
      order: start === "newest" ? "newest" : "oldest",
      time_ms: start === "time" ? String(new Date(this.time.value).getTime()) : "",
      offset: start === "offset" ? this.offset.value : "",
      until_ms: start !== "follow" && this.until.value ? String(new Date(this.until.value).getTime()) : "",
      key: this.key.value,
      text: this.text.value,
      match: this.match.value,
      field: this.field.value,
      follow: start === "follow" ? "true" : "",
      limit: start === "follow" ? 200 : 50,
    };
  }

  address() {
    const given = KEPT.map((name) => [name, this[name].value]);
    const kept = given.filter(([name, value]) => value && !(name === "start" && value === "newest"));
    const path = location.hash.split("?")[0];
    return kept.length ? `${path}?${new URLSearchParams(kept)}` : path;
  }
}

/** One message: a line that opens. */
function item(message, named) {
  const value = shorten(message.value);
  const summary = el("summary", {},
    el("span", { class: "time", text: moment(message.timestamp) }),
    el("span", { class: "place", text: `${named ? `${message.topic} ` : ""}${message.partition}:${count(message.offset)}` }),
    el("bdi", { class: "key", text: message.key ? shorten(message.key) : "" }),
    el("bdi", { class: message.value === null ? "preview none" : "preview", text: message.value === null ? "no value" : value || "empty" }));
  const details = el("details", {}, summary);
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(body(message));
  });
  return el("li", {}, details);
}

const shorten = (value) => (value === null ? "" : (value.text ?? value.hex).slice(0, 300));

function body(message) {
  const value = el("pre", { class: "value", tabindex: "0", "aria-label": "Value" });
  const note = el("p", { class: "note" });
  const show = (full) => {
    value.textContent = full === null ? "" : pretty(full);
    note.textContent = full === null ? "A message without a value." : `${size(full.bytes)}${full.hex === undefined ? "" : ", not UTF-8: as hexadecimal"}`;
  };
  show(message.value);
  const facts = el("dl", { class: "facts" },
    el("dt", { text: "Topic" }), el("dd", {}, el("a", { href: `${route("topics", message.topic)}?start=offset&partition=${message.partition}&offset=${message.offset}`, text: message.topic })),
    ...[["Time", moment(message.timestamp)], ["Partition", String(message.partition)], ["Offset", String(message.offset)]]
      .flatMap(([name, text]) => [el("dt", { text: name }), el("dd", { text })]),
    ...(message.key === null ? [] : [el("dt", { text: "Key" }), el("dd", {}, el("bdi", { text: message.key.text ?? message.key.hex }))]),
    ...message.headers.flatMap((header) => [el("dt", {}, el("bdi", { text: header.name })), el("dd", {}, el("bdi", { text: header.text ?? header.hex ?? "–" }))]));
  const copy = el("button", { type: "button", class: "quiet", text: "Copy value" });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(value.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(value);
      copy.textContent = "Selected: copy it with the keyboard";
    }
  });
  const made = el("div", { class: "message-body" }, facts, value, note, el("p", { class: "actions" }, copy));
  const first = message.value;
  if (first !== null && first.bytes > new TextEncoder().encode(first.text ?? "").length && first.bytes > 2048) {
    note.textContent = "Loading the whole value…";
    get("api/message", { topic: message.topic, partition: message.partition, offset: message.offset })
      .then((full) => {
        show(full.value);
        const limit = 1024 * 1024;
        if (full.value.bytes > limit) note.textContent += `, of which ${size(limit)} are shown`;
      })
      .catch((error) => { note.textContent = `Only the beginning: ${error.message}`; });
  }
  return made;
}

/** JSON with line breaks; anything else as it is. */
function pretty(value) {
  const text = value.text ?? value.hex;
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function produceForm(topic, done) {
  if (!session.user) return null;
  const key = el("input", { name: "key", autocomplete: "off", spellcheck: "false" });
  const value = el("textarea", { name: "value", rows: "4", spellcheck: "false", required: true });
  const result = el("p", { class: "status", role: "status" });
  const form = el("form", { class: "change" },
    el("label", { class: "field" }, el("span", { text: "Key (may be empty)" }), key),
    el("label", { class: "field" }, el("span", { text: "Value" }), value),
    el("button", { type: "submit", class: "primary", text: "Produce" }), result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const sent = await post("api/produce", { topic, key: key.value || null, value: value.value });
      result.textContent = `Stored in partition ${sent.partition} at offset ${count(sent.offset)}.`;
      value.value = "";
      done();
    } catch (error) {
      result.textContent = error.message;
    }
  });
  return el("details", { class: "card produce" }, el("summary", { text: "Produce a message" }), form);
}
