// The settings that hold for a topic or a group, with where each comes from.

import { duration, el, size } from "./dom.js";
import { Table } from "./table.js";

const SOURCES = { topic: "this topic", group: "this group", pattern: "the pattern", configuration: "the configuration", default: "the default" };

const FOREVER_MS = 2 ** 62;

/** What an amount is in larger units: " (7 d)". */
function inWords({ name, value }) {
  const amount = Number(value);
  if (!(amount > 0) || amount > FOREVER_MS) return "";
  if (name.endsWith(".ms") && amount >= 1000) return ` (${duration(amount / 1000)})`;
  return name.endsWith(".bytes") && amount >= 1024 ? ` (${size(amount)})` : "";
}

/** In words: "pattern web-*" is of the pattern web-*. */
function comesFrom({ source }) {
  const [kind, pattern] = source.split(" ");
  return pattern ? `${SOURCES[kind]} ${pattern}` : SOURCES[kind];
}

/** Rows of name, value and source as a table's, those of the topic or group itself first. */
export function nearestFirst(settings) {
  const sources = Object.keys(SOURCES);
  const rank = (row) => sources.indexOf(row.source.split(" ")[0]);
  const sorted = [...settings].sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
  return new Map(sorted.map((row) => [row.name, row]));
}

export const settingsTable = () =>
  new Table({
    label: "Settings",
    nothing: "",
    columns: [
      { name: "name", label: "Setting", head: true, value: (row) => row.name, show: (row) => row.name },
      { name: "value", label: "Value", show: (row) => el("span", {}, el("code", { text: String(row.value) }), inWords(row)) },
      { name: "source", label: "Comes from", value: (row) => row.source, show: comesFrom },
    ],
  });
