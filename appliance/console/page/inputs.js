// Inputs: what takes logs in, and the ledger of each: its sources, where their lines are, and what was lost.

import { get } from "./api.js";
import { badge, compact, count, el, moment, plural, route, setText, size } from "./dom.js";
import { Table } from "./table.js";

const POLL_MS = 2_000;
const HOURS = [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"]];
const bdi = (value) => el("bdi", { text: value || "–" });

/** Asks again and again while the view is shown; returns what ends it. */
function poll(ask, show, problem) {
  let timer = 0;
  let ended = false;
  async function turn() {
    try {
      show(await ask());
      problem.hidden = true;
    } catch (error) {
      if (ended) return;
      setText(problem, error.message);
      problem.hidden = false;
    }
    if (!ended) timer = setTimeout(turn, POLL_MS);
  }
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

const fault = () => el("p", { class: "problem", role: "alert", hidden: true });

export function inputs() {
  const heading = el("h1", { tabindex: "-1", text: "Inputs" });
  const problem = fault();
  const table = new Table({
    label: "Inputs",
    sort: "name",
    nothing: "No input takes logs in.",
    hint: el("p", {}, el("code", { text: "appliance inputs add files '/var/log/*.log' --topic disk --config FILE.toml" })),
    columns: [
      { name: "name", label: "Input", head: true, value: (row) => row.name, show: (row) => el("a", { href: route("inputs", row.name) }, bdi(row.name)) },
      { name: "type", label: "Type", value: (row) => row.type, show: (row) => row.type },
      { name: "state", label: "State", value: (row) => row.state, show: (row) => badge(row.state === "running" ? (row.trouble ? "waits" : "online") : row.state) },
      { name: "topic", label: "Topic", value: (row) => row.topic, show: (row) => bdi(row.topic) },
      { name: "sources", label: "Sources", number: true, value: (row) => row.sources, show: (row) => count(row.sources) },
      { name: "lines", label: "Lines", number: true, value: (row) => row.lines, show: (row) => compact(row.lines) },
      { name: "bytes", label: "Bytes", number: true, value: (row) => row.bytes, show: (row) => size(row.bytes) },
      { name: "refused", label: "Refused", number: true, value: (row) => row.refused, show: (row) => count(row.refused) },
      { name: "gaps", label: "Gaps", number: true, value: (row) => row.gaps, show: (row) => count(row.gaps) },
      { name: "trouble", label: "Waits for", show: (row) => bdi([row.trouble, row.todo].filter(Boolean).join(": ")) },
      { name: "refusing", label: "Refuses", show: (row) => bdi(row.refusing) },
    ],
  });
  const note = el("p", { class: "note", text: "Since each began to run. The ledger of an input has more." });
  const close = poll(() => get("api/inputs"), (found) => table.update(new Map(found.inputs.map((row) => [row.name, row]))), problem);
  return { element: el("div", {}, heading, problem, note, table.element), heading, title: "Inputs", update: () => {}, close };
}

const place = (one) => el("a", { href: `${route("topics", one.topic)}?partition=${one.partition}`, text: `${one.topic}-${one.partition} ${one.first} to ${one.last}` });
const places = (row) => el("span", {}, ...row.places.flatMap((one, index) => (index ? [", ", place(one)] : [place(one)])));
const minute = (seconds) => moment(1000 * seconds).slice(0, 16);

export function input(name) {
  const heading = el("h1", { tabindex: "-1" }, bdi(name));
  const problem = fault();
  const status = el("p", { class: "status", role: "status" });
  const hours = el("select", { id: "hours" }, ...HOURS.map(([value, label]) => el("option", { value, text: label })));
  const sources = new Table({
    label: "Sources",
    nothing: "The ledger has nothing of this input in that time. It is published once a minute.",
    columns: [
      { name: "source", label: "Source", head: true, value: (row) => row.source, show: (row) => bdi(row.source) },
      { name: "lines", label: "Lines", number: true, value: (row) => row.lines, show: (row) => count(row.lines) },
      { name: "bytes", label: "Bytes", number: true, value: (row) => row.bytes, show: (row) => size(row.bytes) },
      { name: "messages", label: "Messages", number: true, value: (row) => row.messages, show: (row) => count(row.messages) },
      { name: "refused", label: "Refused", number: true, value: (row) => row.refused, show: (row) => count(row.refused) },
      { name: "gaps", label: "Gaps", number: true, value: (row) => row.gaps, show: (row) => count(row.gaps) },
      { name: "places", label: "Where they are", show: places },
      { name: "last", label: "Last", value: (row) => row.last_minute, show: (row) => minute(row.last_minute) },
    ],
  });
  const gaps = new Table({
    label: "Lost before it was read",
    nothing: "Nothing was lost before it was read.",
    columns: [
      { name: "source", label: "Source", head: true, show: (row) => bdi(row.source) },
      { name: "from", label: "From", number: true, show: (row) => count(row.start) },
      { name: "to", label: "To", number: true, show: (row) => (row.stop === null ? "?" : count(row.stop)) },
      { name: "unit", label: "Of", show: (row) => row.unit },
      { name: "reason", label: "Why", show: (row) => bdi(row.reason) },
      { name: "at", label: "Told", show: (row) => minute(row.minute) },
    ],
  });
  function show(found) {
    sources.update(new Map(found.sources.map((row) => [row.source, row])));
    gaps.update(new Map(found.gaps.map((row, index) => [index, row])));
    const more = found.sources_total > found.sources.length ? `, ${count(found.sources.length)} of them here` : "";
    const cut = found.is_cut ? " · the ledger of that time is longer: its first part is here" : "";
    const odd = found.unreadable ? ` · ${plural(found.unreadable, "message")} of the ledger no input has written` : "";
    setText(status, `${plural(found.sources_total, "source")}${more} · ${plural(found.gaps_total, "gap")}${cut}${odd}`);
  }
  let running = null;
  async function load() {
    running?.abort();
    const mine = (running = new AbortController());
    try {
      const found = await get("api/ledger", { input: name, hours: hours.value }, mine.signal);
      problem.hidden = true;
      show(found);
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(problem, error.message);
      problem.hidden = false;
    }
  }
  hours.addEventListener("change", load);
  load();
  const again = el("button", { type: "button", text: "Read again", on: { click: load } });
  const bar = el("p", { class: "actions" }, el("label", { for: "hours", text: "Ledger of" }), hours, again);
  const element = el("div", {}, heading, problem, bar, status, sources.element, el("h2", { text: "Lost before it was read" }), gaps.element);
  return { element, heading, title: name, update: () => {}, close: () => running?.abort() };
}
