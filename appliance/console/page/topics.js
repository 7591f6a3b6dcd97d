// The list of topics, and one topic: messages, partitions, settings.

import { badge, compact, count, el, plural, rate, route, setText, size } from "./dom.js";
import { rows } from "./live.js";
import { messages } from "./messages.js";
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
      { name: "rate", label: "In", number: true, value: (row) => row.bytes_per_s, show: (row) => rate(row.bytes_per_s, size) },
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
  return { element: el("div", {}, el("div", { class: "title" }, heading, search), table.element), heading, title: "Topics", update };
}

export function topic(name, tab, query) {
  const heading = el("h1", { tabindex: "-1" }, el("bdi", { text: name }));
  const about = el("p", { class: "about" });
  const tabs = [["", "Messages"], ["partitions", "Partitions"], ["settings", "Settings"]];
  const nav = el("nav", { class: "tabs", "aria-label": `Topic ${name}` },
    ...tabs.map(([path, label]) => el("a", { href: path ? route("topics", name, path) : route("topics", name), "aria-current": path === tab ? "page" : null, text: label })));
  const view = tab === "partitions" ? partitions() : tab === "settings" ? settings(name) : messages(name, query);
  const crumb = el("p", { class: "crumb" }, el("a", { href: route("topics"), text: "Topics" }));
  const update = () => {
    const row = rows("topics").get(name);
    if (row) {
      setText(about, `${plural(row.partitions, "partition")} · ${compact(row.messages)} messages · ${size(row.bytes)} · ${rate(row.bytes_per_s, size)} in · ${row.state}`);
    } else {
      setText(about, rows("topics").size ? "There is no topic of this name, or you may not see it." : "");
    }
    view.update?.();
  };
  return { element: el("div", {}, crumb, heading, about, nav, view.element), heading, title: name, update, close: view.close };
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

function settings(name) {
  const table = new Table({
    label: "Settings",
    sort: "name",
    nothing: "This topic has no settings of its own: the appliance's defaults hold.",
    hint: el("p", {}, el("code", { text: `appliance topics alter ${name} --setting retention.ms=7d` })),
    columns: [
      { name: "name", label: "Setting", head: true, value: (row, key) => key, show: (row, key) => key },
      { name: "value", label: "Value", show: (row) => el("code", { text: String(row) }) },
    ],
  });
  const update = () => table.update(new Map(Object.entries(rows("topics").get(name)?.own || {})));
  return { element: table.element, update };
}
