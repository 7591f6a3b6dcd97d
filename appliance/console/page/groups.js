// The list of groups with their lag, and one group: members, offsets, moving them.

import { post } from "./api.js";
import { charts } from "./charts.js";
import { act, ask, button, settingsOf } from "./dialogs.js";
import { ago, badge, compact, count, duration, el, plural, route, setText, size } from "./dom.js";
import { rows } from "./live.js";
import { alertCard, inCode } from "./overview.js";
import { session } from "./session.js";
import { nearestFirst, settingsTable } from "./settings.js";
import { Table } from "./table.js";

const PIPELINE = "pipeline-";

export const isPipeline = (name, row) => name.startsWith(PIPELINE) && row.members === 0;

const STALE_MS = 60_000;

/** How old the lag of a group is, if it is not of this minute: with many groups each is asked for in turn. */
export const stale = (row) => (row.lag_asked_ms && Date.now() - row.lag_asked_ms > STALE_MS ? `, as of ${ago(row.lag_asked_ms / 1000)} ago` : "");

function columns(kind) {
  return [
    { name: "name", label: kind, head: true, value: (row, key) => key, show: (row, key) => el("a", { href: route("groups", key) }, el("bdi", { text: key })) },
    { name: "state", label: "State", value: (row) => row.state, show: (row) => badge(row.state) },
    { name: "members", label: "Members", number: true, value: (row) => row.members, show: (row) => count(row.members) },
    { name: "lag", label: "Lag, messages", number: true, value: (row) => row.lag_messages, show: (row) => compact(row.lag_messages) },
    { name: "bytes", label: "Lag, bytes", number: true, value: (row) => row.lag_bytes, show: (row) => size(row.lag_bytes) },
    { name: "seconds", label: "Behind", number: true, value: (row) => row.lag_seconds, show: (row) => duration(row.lag_seconds) + stale(row) },
    { name: "topics", label: "Topics", show: (row) => row.topics.join(", ") },
  ];
}

export function groups(pipelines) {
  const title = pipelines ? "Pipelines" : "Groups";
  const heading = el("h1", { tabindex: "-1", text: title });
  const table = new Table({
    label: title,
    sort: "name",
    nothing: pipelines ? "No pipeline has published its offsets." : "No group has committed an offset, and none has members.",
    hint: el("p", {}, el("code", { text: pipelines ? "appliance pipeline run CONFIG.toml" : "appliance consume TOPIC --group NAME" })),
    columns: columns(pipelines ? "Pipeline" : "Group"),
  });
  const wrong = el("div", { class: "alerts" });
  const filter = el("input", { type: "search", id: "filter", placeholder: "Filter by name", autocomplete: "off", spellcheck: "false" });
  const update = () => {
    const wanted = filter.value.trim().toLowerCase();
    const all = [...rows("groups")].filter(([name, row]) => isPipeline(name, row) === pipelines);
    const chosen = all.filter(([name]) => name.toLowerCase().includes(wanted));
    table.update(new Map(chosen), chosen.length < all.length);
    const names = new Set(all.map(([name]) => name));
    showAlerts(wrong, (alert) => alert.groups.some((name) => names.has(name)));
  };
  filter.addEventListener("input", update);
  const search = el("div", { class: "filter" }, el("label", { for: "filter", class: "hidden", text: `Filter ${title.toLowerCase()} by name` }), filter);
  return { element: el("div", {}, el("div", { class: "title" }, heading, search), wrong, table.element), heading, title, update };
}

const since = (ms) => (ms === null ? "–" : `${ago(ms / 1000)} ago`);
const latest = (found, field) => Math.max(0, ...found.map((row) => row[field] ?? 0));

/** Cards of the findings that `concerns` chooses; drawn again only when they are others. */
function showAlerts(place, concerns) {
  const found = (rows("alerts").get("") || []).filter(concerns);
  const shown = JSON.stringify(found);
  if (shown === place.dataset.shown) return;
  place.dataset.shown = shown;
  place.replaceChildren(...found.map(alertCard));
}

const NAMED_MAX = 8;

/** How the group stands in its partitions: those that stand alike in one line. */
function showReasons(place, partitions) {
  const alike = new Map();
  for (const row of partitions) alike.set(row.why, [...(alike.get(row.why) || []), `${row.topic}-${row.partition}`]);
  const lines = [...alike].map(([why, names]) => {
    const more = names.length > NAMED_MAX ? ` and ${count(names.length - NAMED_MAX)} more` : "";
    return `${names.slice(0, NAMED_MAX).join(", ")}${more}: ${why}`;
  });
  if (lines.join("\n") === place.dataset.shown) return;
  place.dataset.shown = lines.join("\n");
  place.replaceChildren(...lines.map((line) => el("li", {}, ...inCode(line))));
}

export function group(name) {
  const heading = el("h1", { tabindex: "-1" }, el("bdi", { text: name }));
  const about = el("p", { class: "about" });
  const lately = el("p", { class: "note" });
  const members = new Table({
    label: "Members",
    sort: "client",
    nothing: "No members: nobody reads as this group now.",
    columns: [
      { name: "client", label: "Client", head: true, value: (row) => row.client, show: (row) => el("bdi", { text: row.client || "–" }) },
      { name: "host", label: "Host", value: (row) => row.host, show: (row) => el("bdi", { text: row.host || "–" }) },
      { name: "partitions", label: "Partitions", show: (row) => row.partitions.map(([topic, partition]) => `${topic}-${partition}`).join(", ") || "–" },
      { name: "silent", label: "Heard", number: true, value: (row) => row.silent_s, show: (row) => (row.silent_s === null ? "–" : `${duration(Math.round(row.silent_s))} ago`) },
      { name: "id", label: "Id", show: (row) => el("bdi", { class: "id", text: row.id }) },
    ],
  });
  const clientOf = new Map();
  const reasons = el("ul", { class: "reasons" });
  const wrong = el("div", { class: "alerts" });
  const offsets = new Table({
    label: "Offsets",
    sort: "place",
    nothing: "No offsets are committed.",
    columns: [
      { name: "place", label: "Partition", head: true, value: (row) => `${row.topic}-${row.partition}`, show: (row) => el("a", { href: `${route("topics", row.topic)}?partition=${row.partition}`, text: `${row.topic}-${row.partition}` }) },
      { name: "offset", label: "Committed", number: true, value: (row) => row.offset, show: (row) => row.offset === null ? "–" : el("a", { href: `${route("topics", row.topic)}?start=offset&partition=${row.partition}&offset=${row.offset}`, title: "The message that is read next", text: count(row.offset) }) },
      { name: "end", label: "End", number: true, value: (row) => row.end, show: (row) => count(row.end) },
      { name: "lag", label: "Lag, messages", number: true, value: (row) => row.lag_messages, show: (row) => count(row.lag_messages) },
      { name: "bytes", label: "Lag, bytes", number: true, value: (row) => row.lag_bytes, show: (row) => size(row.lag_bytes) },
      { name: "lost", label: "Removed unread", number: true, value: (row) => row.lost_bytes, show: (row) => size(row.lost_bytes) },
      { name: "seconds", label: "Behind", number: true, value: (row) => row.lag_seconds, show: (row) => duration(row.lag_seconds) },
      { name: "committed", label: "Last commit", number: true, value: (row) => row.committed_ms, show: (row) => since(row.committed_ms) },
      { name: "owner", label: "Read by", value: (row) => row.owner, show: (row) => el("bdi", { text: row.owner ? clientOf.get(row.owner) || row.owner : "nobody" }) },
      { name: "owned", label: "For", number: true, value: (row) => row.owned_ms, show: (row) => (row.owned_ms === null ? "–" : ago(row.owned_ms / 1000)) },
    ],
  });
  const held = settingsTable();
  const moving = session.user ? moveForm(name) : null;
  const update = () => {
    const row = rows("groups").get(name);
    const detail = rows("group").get("");
    setText(about, row
      ? `${row.state} · ${plural(row.members, "member")} · lag ${compact(row.lag_messages)} messages, ${size(row.lag_bytes)}, ${duration(row.lag_seconds)} behind${stale(row)}`
      : rows("topics").size ? "There is no group of this name, or you may not see it." : "");
    showAlerts(wrong, (alert) => alert.groups.includes(name));
    if (!detail) return;
    const times = [["last commit", "committed_ms"], ["last change of owners", "owned_ms"]].map(([what, field]) => [what, latest(detail.partitions, field)]);
    setText(lately, times.filter(([, at]) => at).map(([what, at]) => `${what} ${since(at)}`).join(" · "));
    showReasons(reasons, detail.partitions);
    for (const member of detail.members) clientOf.set(member.id, member.client);
    members.update(new Map(detail.members.map((member) => [member.id, member])));
    offsets.update(new Map(detail.partitions.map((one) => [`${one.topic}-${one.partition}`, one])));
    held.update(nearestFirst(Object.entries(detail.settings).map(([key, value]) => ({ name: key, value, source: detail.sources[key] }))));
    moving?.update(detail);
  };
  const behind = charts({ group: name }, [["lag_messages", "Lag, messages", compact], ["lag_seconds", "Behind", duration]]);
  const crumb = el("p", { class: "crumb" }, el("a", { href: route("groups"), text: "Groups" }));
  const element = el("div", {}, crumb, heading, about, wrong,
    el("section", { "aria-labelledby": "reasons-title" }, el("h2", { id: "reasons-title", text: "Why it stands as it does" }), lately, reasons),
    el("section", { "aria-labelledby": "offsets-title" }, el("h2", { id: "offsets-title", text: "Offsets and lag" }), offsets.element),
    el("section", { "aria-labelledby": "charts-title" }, el("h2", { id: "charts-title", text: "The last hours" }), behind.element),
    el("section", { "aria-labelledby": "members-title" }, el("h2", { id: "members-title", text: "Members" }), members.element),
    el("section", { "aria-labelledby": "settings-title" }, el("h2", { id: "settings-title", text: "Settings" }),
      el("p", { class: "note", text: "They hold for members of the consumer protocol (group.protocol=consumer); others bring their own." }), held.element));
  if (moving) element.append(moving.element, el("p", { class: "actions" }, button("Change settings", () => configure(name)), button("Delete the group", () => remove(name), true)));
  return { element, heading, title: name, update, close: behind.close };
}

function configure(name) {
  const lines = el("textarea", { name: "settings", rows: "3", spellcheck: "false", placeholder: "consumer.session.timeout.ms=60000" });
  ask({
    title: "Change the settings of a group", note: "NAME=VALUE on each line; NAME= takes one back.", fields: [el("label", { class: "field" }, el("span", { text: "Settings" }), lines)], label: "Change",
    send: (given) => act("alter_group", { group: name, settings: settingsOf(given.settings) }),
  });
}

function remove(name) {
  ask({
    title: "Delete a group", note: "Its committed offsets are gone: who reads as this group again begins at its auto.offset.reset.", typed: name, label: "Delete the group",
    send: (given) => act("delete_offsets", { group: name }, given.confirm),
    done: () => { location.hash = route("groups"); },
  });
}

function moveForm(name) {
  const topic = el("select", { name: "topic", required: true });
  const to = el("select", { name: "to" }, ...[["earliest", "the first message"], ["latest", "the end"], ["time", "a time"]].map(([value, text]) => el("option", { value, text })));
  const time = el("input", { type: "datetime-local", step: "1" });
  const timeField = el("label", { class: "field", hidden: true }, el("span", { text: "Time" }), time);
  const result = el("p", { class: "status", role: "status" });
  const button = el("button", { type: "submit", class: "primary", text: "Move the offsets" });
  const form = el("form", { class: "change row" },
    el("label", { class: "field" }, el("span", { text: "Topic" }), topic),
    el("label", { class: "field" }, el("span", { text: "To" }), to), timeField, button, result);
  to.addEventListener("change", () => {
    timeField.hidden = to.value !== "time";
    time.required = to.value === "time";
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = { group: name, topic: topic.value, to: to.value };
    if (to.value === "time") wanted.time_ms = new Date(time.value).getTime();
    ask({
      title: "Move the offsets", note: `In ${topic.value}: what was read may be read again, or skipped.`, typed: name, label: "Move the offsets",
      send: (given) => post("api/offsets", { ...wanted, confirm: given.confirm }),
      done: (done) => { result.textContent = `Moved in ${plural(done.partitions, "partition")}.`; },
    });
  });
  let known = "";
  const update = (detail) => {
    const names = [...new Set(detail.partitions.map((row) => row.topic))];
    if (names.join() !== known) {
      known = names.join();
      topic.replaceChildren(...names.map((one) => el("option", { value: one, text: one })));
    }
    button.disabled = detail.members.length > 0 || names.length === 0;
    if (detail.members.length > 0) setText(result, "Stop the members first: they would commit over it.");
    else if (result.textContent.startsWith("Stop")) setText(result, "");
  };
  return { element: el("section", { class: "card" }, el("h2", { text: "Move the offsets" }), form), update };
}
