// A list that the server pages and filters: users, access rules, quotas, connections, deleted topics.

import { get } from "./api.js";
import { count, el, setText } from "./dom.js";
import { Table } from "./table.js";

const WAIT_MS = 250;

/**
 * `what`: the list's name for the server.  `keyOf(row)`: what a row is known by.
 * Returns {element, load(), row(key), close()}; `load` asks again and keeps the page.
 */
export function listing({ what, label, columns, keyOf, nothing, sort = "", note = null }) {
  const table = new Table({ label, columns, sort, nothing });
  const filter = el("input", { type: "search", id: "filter", placeholder: "Filter", "aria-label": `Filter ${label.toLowerCase()}`, autocomplete: "off", spellcheck: "false", maxlength: "1000" });
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const status = el("p", { class: "status", role: "status" });
  const back = el("button", { type: "button", text: "Previous" });
  const next = el("button", { type: "button", text: "Next" });
  const pager = el("p", { class: "actions", hidden: true }, back, next);
  let page = 0;
  let running = null;
  let timer = 0;

  async function load() {
    running?.abort();
    const mine = (running = new AbortController());
    try {
      const found = await get("api/list", { what, text: filter.value.trim(), page: page || "" }, mine.signal);
      if (running !== mine) return;
      problem.hidden = true;
      const pages = Math.max(1, Math.ceil(found.total / found.page_rows));
      if (page >= pages) {
        page = pages - 1;
        load();
        return;
      }
      table.update(new Map(found.rows.map((row) => [keyOf(row), row])), filter.value.trim() !== "");
      pager.hidden = pages === 1;
      back.disabled = page === 0;
      next.disabled = page >= pages - 1;
      const others = found.others ? ` · ${count(found.others)} connections that move less are not in the list` : "";
      setText(status, `${count(found.total)} in all${pages > 1 ? ` · page ${page + 1} of ${pages}` : ""}${others}`);
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.textContent = error.message;
      problem.hidden = false;
      table.update(new Map());
      setText(status, "");
    }
  }
  const turn = (by) => {
    page += by;
    load();
  };
  back.addEventListener("click", () => turn(-1));
  next.addEventListener("click", () => turn(1));
  filter.addEventListener("input", () => {
    clearTimeout(timer);
    page = 0;
    timer = setTimeout(load, WAIT_MS);
  });
  load();
  const close = () => {
    clearTimeout(timer);
    running?.abort();
  };
  const bar = el("div", { class: "title" }, el("label", { class: "filter" }, filter));
  const row = (key) => table.rows.get(key);
  return { element: el("div", {}, note, problem, bar, table.element, status, pager), load, row, close };
}
