// SQL over topics: one query, its rows, and what the server says about it.

import { post } from "./api.js";
import { button, field } from "./dialogs.js";
import { el, plural, route, setText } from "./dom.js";
import { Table } from "./table.js";

const EXAMPLES = ["describe web", "select level, count(*) n from app group by level order by n desc", "select time, message from app where timestamp > now() - interval 5 minutes and level = 'error'"];

export function sql(query) {
  const heading = el("h1", { tabindex: "-1", text: "SQL" });
  const text = el("textarea", { name: "query", id: "search", rows: "4", required: true, maxlength: "10000", spellcheck: "false", autocapitalize: "none", autocomplete: "off" });
  const stop = button("Stop", () => running?.abort());
  const run = el("button", { type: "submit", class: "primary", text: "Run" });
  const status = el("p", { class: "status", role: "status" });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const found = el("div", { class: "result" });
  const examples = el("ul", { class: "note" }, ...EXAMPLES.map((one) => el("li", {}, el("code", { text: one }))));
  const help = el("details", {}, el("summary", { text: "How to ask" }),
    el("p", { class: "note", text: "A topic is a table with the columns partition, offset, timestamp, key, value, headers, and those that a parser makes of its lines; quote names that are no words. It is DuckDB's SQL, read only; a query has 30 seconds and shows 1,000 rows. appliance sql in a shell has no such bounds." }), examples);
  const form = el("form", { class: "sql" }, field("Query", text), help, el("p", { class: "actions" }, run, stop));
  let running = null;
  text.value = query.get("query") || "";
  stop.hidden = true;

  async function ask() {
    running?.abort();
    const mine = (running = new AbortController());
    history.replaceState(null, "", `${route("sql")}?${new URLSearchParams({ query: text.value })}`);
    problem.hidden = true;
    stop.hidden = false;
    setText(status, "Running…");
    found.replaceChildren();
    const begun = performance.now();
    try {
      const { columns, rows, complete } = await post("api/sql", { query: text.value }, mine.signal);
      const took = `${((performance.now() - begun) / 1000).toFixed(1)} s`;
      setText(status, `${complete ? plural(rows.length, "row") : `The first ${plural(rows.length, "row")}: the others are left out`}, after ${took}`);
      found.replaceChildren(resultTable(columns, rows));
    } catch (error) {
      if (running !== mine) return;
      setText(status, error.name === "AbortError" ? "Stopped." : "");
      if (error.name !== "AbortError") setText(problem, error.message);
      problem.hidden = error.name === "AbortError";
    }
    if (running === mine) stop.hidden = true;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return { element: el("div", {}, heading, form, status, problem, found), heading, title: "SQL", update: () => {}, close: () => running?.abort() };
}

function resultTable(columns, rows) {
  const number = (index) => rows.some((row) => typeof row[index] === "number");
  const table = new Table({
    label: "Result",
    nothing: "The query has no rows.",
    columns: columns.map((name, index) => ({
      name: String(index), label: name, number: number(index), value: (row) => row[index],
      show: (row) => (row[index] === null ? el("span", { class: "null", text: "null" }) : el("bdi", { text: String(row[index]) })),
    })),
  });
  table.update(new Map(rows.map((row, index) => [index, row])));
  return table.element;
}
