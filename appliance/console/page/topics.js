// The list of topics, and one topic: messages, partitions, settings.

import { get } from "./api.js";
import { act, ask, button, field, select, settingsOf, text } from "./dialogs.js";
import { charts } from "./charts.js";
import { badge, compact, count, duration, el, moment, plural, rate, route, setText, size } from "./dom.js";
import { stale } from "./groups.js";
import { listing } from "./listing.js";
import { rateOf, rows } from "./live.js";
import { messages } from "./messages.js";
import { session } from "./session.js";
import { nearestFirst, settingsTable } from "./settings.js";
import { Table } from "./table.js";

export function topics() {
  const filter = el("input", { type: "search", id: "filter", placeholder: "Filter by name", autocomplete: "off", spellcheck: "false" });
  const table = new Table({
    label: "Topics",
    sort: "name",
    nothing: "There is no topic yet.",
    hint: el("p", {}, "Make one: ", el("code", { text: "appliance topics create NAME" }), ", or produce to it."),
    columns: [
      { name: "name", label: "Topic", head: true, value: (row, key) => key, show: (row, key) => el("a", { href: route("topics", key), text: key }) },
      { name: "partitions", label: "Partitions", number: true, value: (row) => row.partitions, show: (row) => count(row.partitions) },
      { name: "messages", label: "Messages", number: true, value: (row) => row.messages, show: (row) => compact(row.messages) },
      { name: "bytes", label: "Size", number: true, value: (row) => row.bytes, show: (row) => size(row.bytes) },
      { name: "rate", label: "In", number: true, value: rateOf, show: (row) => rate(rateOf(row), size) },
      { name: "state", label: "State", value: (row) => row.state, show: (row) => badge(row.state) },
    ],
  });
  const heading = el("h1", { tabindex: "-1", text: "Topics" });
  const update = () => {
    const wanted = filter.value.trim().toLowerCase();
    const all = rows("topics");
    const chosen = wanted ? new Map([...all].filter(([name]) => name.toLowerCase().includes(wanted))) : all;
    table.update(chosen, chosen.size < all.size);
  };
  filter.addEventListener("input", update);
  const search = el("div", { class: "filter" }, el("label", { for: "filter", class: "hidden", text: "Filter topics by name" }), filter);
  const bar = session.user
    ? el("p", { class: "actions" }, button("Create a topic", createTopic), el("a", { class: "button", href: route("trash"), text: "Deleted topics" }))
    : null;
  return { element: el("div", {}, el("div", { class: "title" }, heading, search), bar, table.element), heading, title: "Topics", update };
}

const settingsField = (label, value = "") => field(label, el("textarea", { name: "settings", rows: "4", spellcheck: "false", value, placeholder: "retention.ms=7d" }));

function createTopic() {
  ask({
    title: "Create a topic",
    fields: [
      field("Name", text("name", { required: true, maxlength: "249" })),
      field("Partitions (empty: the default)", text("partitions", { inputmode: "numeric", pattern: "[0-9]{1,6}" })),
      settingsField("Settings, NAME=VALUE on each line (may be empty)"),
    ],
    label: "Create",
    send: (given) => act("create_topic", { name: given.name, partitions: given.partitions ? Number(given.partitions) : null, settings: settingsOf(given.settings) }),
    done: (made) => { location.hash = route("topics", made.name, "settings"); },
  });
}

/** The buttons of one topic, for those who are logged in. */
function topicActions(name, changed) {
  if (!session.user) return null;
  const empty = () => {
    const to = select("to", [["latest", "All messages"], ["time", "Messages before a time"]]);
    const time = el("input", { type: "datetime-local", step: "1", name: "time" });
    const timeField = field("Time", time);
    timeField.hidden = true;
    to.addEventListener("change", () => {
      timeField.hidden = to.value !== "time";
      time.required = !timeField.hidden;
    });
    ask({
      title: "Empty a topic", note: "The messages are gone at once, for all groups. This cannot be undone.", fields: [field("What goes", to), timeField], typed: name, label: "Delete the messages",
      send: (given) => act("trim", { name, to: given.to, ...(given.to === "time" ? { time_ms: new Date(given.time).getTime() } : {}) }, given.confirm),
      done: (gone) => changed(`${size(gone.bytes)} deleted.`),
    });
  };
  const remove = () => ask({
    title: "Delete a topic", note: "It can be brought back for a while, unless the disk needs the room: see the deleted topics.", typed: name, label: "Delete the topic",
    send: (given) => act("delete_topic", { name }, given.confirm),
    done: () => { location.hash = route("trash"); },
  });
  const alter = () => ask({
    title: "Change settings", note: "A setting without a value goes back to the default. Partitions can only become more; keys then go to others than before.",
    fields: [
      field("Partitions (empty: as they are)", text("partitions", { inputmode: "numeric", pattern: "[0-9]{1,6}" })),
      settingsField("Settings, NAME=VALUE on each line"),
    ],
    label: "Change",
    send: (given) => {
      const wanted = { name, settings: settingsOf(given.settings) };
      if (given.partitions) wanted.partitions = Number(given.partitions);
      return act("alter_topic", wanted);
    },
    done: () => changed("Changed."),
  });
  return el("p", { class: "actions" }, button("Change settings", alter), button("Empty", empty, true), button("Delete", remove, true));
}

/** Deleted topics that can be brought back. */
export function trash() {
  const heading = el("h1", { tabindex: "-1", text: "Deleted topics" });
  const list = listing({
    what: "trash",
    label: "Deleted topics",
    nothing: "No deleted topic can be brought back.",
    keyOf: (row) => row.id,
    columns: [
      { name: "name", label: "Topic", head: true, value: (row) => row.name, show: (row) => el("bdi", { text: row.name }) },
      { name: "partitions", label: "Partitions", number: true, value: (row) => row.partitions, show: (row) => count(row.partitions) },
      { name: "bytes", label: "Size", number: true, value: (row) => row.bytes, show: (row) => size(row.bytes) },
      { name: "deleted", label: "Deleted", number: true, value: (row) => row.deleted_ms, show: (row) => moment(row.deleted_ms) },
      { name: "until", label: "Goes in", number: true, value: (row) => row.until_ms, show: (row) => duration(Math.max(0, (row.until_ms - Date.now()) / 1000)) },
      ...(session.user ? [{ name: "actions", label: "Change", show: (row) => button("Bring back", () => bringBack(row)) }] : []),
    ],
  });
  const bringBack = (row) => ask({
    title: "Bring a topic back", note: "With its messages, its settings, and the offsets that groups had committed.",
    fields: [field("Name", text("name", { required: true, maxlength: "249", value: row.name }))], label: "Bring it back",
    send: (given) => act("undelete_topic", { name: row.id, new_name: given.name }),
    done: (back) => { location.hash = route("topics", back.name); },
  });
  const crumb = el("p", { class: "crumb" }, el("a", { href: route("topics"), text: "Topics" }));
  return { element: el("div", {}, crumb, heading, list.element), heading, title: "Deleted topics", update: () => {}, close: list.close };
}

export function topic(name, tab, query) {
  const heading = el("h1", { tabindex: "-1" }, el("bdi", { text: name }));
  const about = el("p", { class: "about" });
  const tabs = [["", "Messages"], ["partitions", "Partitions"], ["readers", "Who reads"], ["charts", "Charts"], ["settings", "Settings"]];
  const nav = el("nav", { class: "tabs", "aria-label": `Topic ${name}` },
    ...tabs.map(([path, label]) => el("a", { href: path ? route("topics", name, path) : route("topics", name), "aria-current": path === tab ? "page" : null, text: label })));
  const view = tab === "partitions" ? partitions() : tab === "readers" ? readers() : tab === "charts" ? traffic(name) : tab === "settings" ? settings(name) : messages(name, query);
  const crumb = el("p", { class: "crumb" }, el("a", { href: route("topics"), text: "Topics" }));
  const done = el("p", { class: "status", role: "status" });
  const buttons = topicActions(name, (said) => {
    setText(done, said);
    view.changed?.();
  });
  const update = () => {
    const row = rows("topics").get(name);
    if (row) {
      setText(about, `${plural(row.partitions, "partition")} · ${compact(row.messages)} messages · ${size(row.bytes)} · ${rate(rateOf(row), size)} in · ${row.state}`);
    } else {
      setText(about, rows("topics").size ? "There is no topic of this name, or you may not see it." : "");
    }
    view.update?.();
  };
  return { element: el("div", {}, crumb, heading, about, buttons, buttons && done, nav, view.element), heading, title: name, update, close: view.close };
}

function partitions() {
  const table = new Table({
    label: "Partitions",
    sort: "partition",
    nothing: "No partitions to show.",
    columns: [
      { name: "partition", label: "Partition", head: true, value: (row) => row.partition, show: (row) => String(row.partition) },
      { name: "state", label: "State", value: (row) => row.state, show: (row) => badge(row.state) },
      { name: "messages", label: "Messages", number: true, value: (row) => row.messages, show: (row) => count(row.messages) },
      { name: "bytes", label: "Size", number: true, value: (row) => row.bytes, show: (row) => size(row.bytes) },
      { name: "start", label: "First offset", number: true, value: (row) => row.start, show: (row) => count(row.start) },
      { name: "end", label: "End", number: true, value: (row) => row.end, show: (row) => count(row.end) },
      { name: "leader", label: "Broker", number: true, value: (row) => row.leader, show: (row) => String(row.leader) },
    ],
  });
  const reasons = el("div");
  const update = () => {
    const found = rows("partitions");
    table.update(found);
    const text = [...found.values()].filter((row) => row.reason).map((row) => `${row.partition}: ${row.reason}`);
    if (reasons.childElementCount !== text.length) {
      reasons.replaceChildren(...text.map((one) => el("p", { class: "problem" }, el("bdi", { text: `Partition ${one}` }))));
    }
  };
  return { element: el("div", {}, reasons, table.element), update };
}

/** The groups that read the topic: who, and how far behind. */
function readers() {
  const table = new Table({
    label: "Groups that read this topic",
    sort: "name",
    nothing: "No group reads this topic.",
    columns: [
      { name: "name", label: "Group", head: true, value: (row, key) => key, show: (row, key) => el("a", { href: route("groups", key) }, el("bdi", { text: key })) },
      { name: "state", label: "State", value: (row) => row.state, show: (row) => badge(row.state) },
      { name: "members", label: "Members", number: true, value: (row) => row.members, show: (row) => count(row.members) },
      { name: "clients", label: "Clients", show: (row) => el("bdi", { text: row.clients.join(", ") || "–" }) },
      { name: "lag", label: "Lag, messages", number: true, value: (row) => row.lag_messages, show: (row) => compact(row.lag_messages) },
      { name: "bytes", label: "Lag, bytes", number: true, value: (row) => row.lag_bytes, show: (row) => size(row.lag_bytes) },
      { name: "lost", label: "Removed unread", number: true, value: (row) => row.lost_bytes, show: (row) => size(row.lost_bytes) },
      { name: "seconds", label: "Behind", number: true, value: (row) => row.lag_seconds, show: (row) => duration(row.lag_seconds) + stale(row) },
    ],
  });
  return { element: table.element, update: () => table.update(rows("readers")) };
}

/** What has come in the last hours. */
function traffic(name) {
  const show = (value) => rate(value, compact);
  return charts({ topic: name }, [["bytes_per_s", "Bytes in", (value) => rate(value, size)], ["messages_per_s", "Messages in", show]]);
}

/** The settings that hold, with where each comes from: those of the topic first. */
function settings(name) {
  const table = settingsTable();
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const asked = new AbortController();
  async function load() {
    try {
      const found = await get("api/settings", { topic: name }, asked.signal);
      table.update(nearestFirst(found.settings));
      problem.hidden = true;
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }
  load();
  return { element: el("div", {}, problem, table.element), changed: load, close: () => asked.abort() };
}
