// A table whose rows are kept by key: an update changes the cells that differ, and nothing else.
// On a narrow screen each row becomes a card; the labels come from the columns.

import { el, empty } from "./dom.js";

/**
 * `columns`: {name, label, show(row, key) → text or element, value?(row, key) → what to sort by, number?, head?}
 * `label`: what the table is, for screen readers.  `sort`: name of the column to begin with.
 */
export class Table {
  constructor({ columns, label, sort = "", nothing = "There is nothing here yet.", hint = null }) {
    this.columns = columns;
    this.sort = { name: sort, down: false };
    this.nothing = nothing;
    this.hint = hint;
    this.byKey = new Map();
    this.body = el("tbody");
    this.heads = columns.map((column) => this.head(column));
    const head = el("thead", {}, el("tr", {}, ...this.heads));
    this.table = el("table", {}, el("caption", { class: "hidden", text: label }), head, this.body);
    this.empty = el("div", { hidden: true });
    this.element = el("div", { class: "table" }, this.table, this.empty);
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
    this.arrange();
  }

  /** Shows these rows: a Map of key → row.  `filtered`: they are a choice, so an empty one says so. */
  update(rows, filtered = false) {
    for (const [key, kept] of this.byKey) {
      if (!rows.has(key)) {
        kept.element.remove();
        this.byKey.delete(key);
      }
    }
    for (const [key, row] of rows) {
      let kept = this.byKey.get(key);
      if (!kept) {
        const cells = this.columns.map((column) => this.cell(column));
        kept = { key, cells, element: el("tr", {}, ...cells) };
        this.byKey.set(key, kept);
      }
      kept.row = row;
      this.columns.forEach((column, index) => fill(kept.cells[index], column.show(row, key)));
    }
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

  arrange() {
    const column = this.columns.find((one) => one.name === this.sort.name);
    const sign = this.sort.down ? -1 : 1;
    const kept = [...this.byKey.values()];
    if (column) {
      kept.sort((a, b) => sign * compare(column.value(a.row, a.key), column.value(b.row, b.key)) || compare(a.key, b.key));
    }
    kept.forEach((one, index) => {
      if (this.body.children[index] !== one.element) this.body.insertBefore(one.element, this.body.children[index] || null);
    });
    this.columns.forEach((one, index) => {
      if (!one.value) return;
      const order = one.name !== this.sort.name ? "none" : this.sort.down ? "descending" : "ascending";
      this.heads[index].setAttribute("aria-sort", order);
    });
  }
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
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
