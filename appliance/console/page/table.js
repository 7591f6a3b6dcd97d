// A table whose rows are kept by key: an update changes the cells that differ, and nothing else.  It shows PAGE_ROWS
// rows at a time, of all in their order.  On a narrow screen each row becomes a card; the labels come from the columns.

import { count, el, empty, setText } from "./dom.js";

const PAGE_ROWS = 200;
const NARROW = matchMedia("(max-width: 40rem)");
const MEDIUM = matchMedia("(max-width: 68rem)");
/** A table with more columns has no room on a screen of MEDIUM width. */
const COLUMNS_OF_MEDIUM = 7;

const fold = (element) => element.classList.toggle("cards", (element.dataset.columns > COLUMNS_OF_MEDIUM ? MEDIUM : NARROW).matches);
for (const width of [NARROW, MEDIUM]) width.addEventListener("change", () => document.querySelectorAll(".table").forEach(fold));

/**
 * `columns`: {name, label, show(row, key) → text or element, value?(row, key) → what to sort by, number?, head?}
 * `label`: what the table is, for screen readers.  `sort`: name of the column to begin with; "" keeps the rows' order.
 */
export class Table {
  constructor({ columns, label, sort = "", nothing = "There is nothing here yet.", hint = null }) {
    this.columns = columns;
    this.sort = { name: sort, down: false };
    this.nothing = nothing;
    this.hint = hint;
    this.rows = new Map();
    this.shown = new Map();
    this.page = 0;
    this.body = el("tbody");
    this.heads = columns.map((column) => this.head(column));
    const head = el("thead", {}, el("tr", {}, ...this.heads));
    this.table = el("table", {}, el("caption", { class: "hidden", text: label }), head, this.body);
    this.empty = el("div", { hidden: true });
    this.back = el("button", { type: "button", text: "Previous", on: { click: () => this.turn(-1) } });
    this.next = el("button", { type: "button", text: "Next", on: { click: () => this.turn(1) } });
    this.where = el("span", { class: "where", role: "status" });
    this.pager = el("p", { class: "actions pager", hidden: true }, this.back, this.next, this.where);
    this.element = el("div", { class: "table", "data-columns": columns.length }, this.table, this.empty, this.pager);
    fold(this.element);
  }

  head(column) {
    const cell = el("th", { scope: "col", class: column.number ? "number" : "" });
    if (!column.value) {
      cell.textContent = column.label;
      return cell;
    }
    cell.append(el("button", { type: "button", class: "sort", text: column.label, on: { click: () => this.sortBy(column) } }));
    return cell;
  }

  sortBy(column) {
    this.sort = { name: column.name, down: this.sort.name === column.name ? !this.sort.down : Boolean(column.number) };
    this.page = 0;
    this.arrange();
  }

  turn(by) {
    this.page += by;
    this.arrange();
  }

  /** Shows these rows: a Map of key → row.  `filtered`: they are a choice, so an empty one says so. */
  update(rows, filtered = false) {
    this.rows = rows;
    this.table.hidden = rows.size === 0;
    this.empty.hidden = rows.size !== 0;
    if (rows.size === 0) {
      const title = filtered ? "Nothing matches." : this.nothing;
      if (this.empty.firstChild?.firstChild?.textContent !== title) {
        this.empty.replaceChildren(empty(title, filtered ? null : this.hint));
      }
    }
    this.arrange();
  }

  cell(column) {
    const name = column.head ? "th" : "td";
    return el(name, {
      scope: column.head ? "row" : null,
      class: column.number ? "number" : "",
      "data-label": column.label,
    });
  }

  /** The keys of this page, in their order. */
  chosen() {
    const column = this.columns.find((one) => one.name === this.sort.name);
    const sign = this.sort.down ? -1 : 1;
    const keys = [...this.rows.keys()];
    if (column) {
      const values = new Map([...this.rows].map(([key, row]) => [key, column.value(row, key)]));
      keys.sort((a, b) => sign * compare(values.get(a), values.get(b)) || compare(a, b));
    }
    const pages = Math.max(1, Math.ceil(keys.length / PAGE_ROWS));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    this.pager.hidden = pages === 1;
    this.back.disabled = this.page === 0;
    this.next.disabled = this.page === pages - 1;
    const first = this.page * PAGE_ROWS;
    const last = Math.min(first + PAGE_ROWS, keys.length);
    setText(this.where, pages === 1 ? "" : `${count(first + 1)} to ${count(last)} of ${count(keys.length)}`);
    return keys.slice(first, last);
  }

  arrange() {
    const keys = this.chosen();
    const wanted = new Set(keys);
    for (const [key, kept] of this.shown) {
      if (!wanted.has(key)) {
        kept.element.remove();
        this.shown.delete(key);
      }
    }
    keys.forEach((key, index) => {
      let kept = this.shown.get(key);
      if (!kept) {
        const cells = this.columns.map((column) => this.cell(column));
        kept = { cells, element: el("tr", {}, ...cells) };
        this.shown.set(key, kept);
      }
      const row = this.rows.get(key);
      this.columns.forEach((column, at) => fill(kept.cells[at], column.show(row, key)));
      if (this.body.children[index] !== kept.element) this.body.insertBefore(kept.element, this.body.children[index] || null);
    });
    this.columns.forEach((one, index) => {
      if (!one.value) return;
      const order = one.name !== this.sort.name ? "none" : this.sort.down ? "descending" : "ascending";
      this.heads[index].setAttribute("aria-sort", order);
    });
  }
}

const collator = new Intl.Collator(undefined, { numeric: true });

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? collator.compare(a, b) : a - b;
}

/** Puts text or an element into a cell; an element that looks the same stays, with its focus. */
function fill(cell, shown) {
  if (shown instanceof Node) {
    const old = cell.firstChild;
    if (!old || !old.isEqualNode(shown)) cell.replaceChildren(shown);
  } else if (cell.textContent !== shown) {
    cell.textContent = shown;
  }
}
