// A table that sorts and draws only the visible rows. Each row is one line, or a card where the columns do not fit.

import { element, say } from "./dom.js";
import { whole } from "./format.js";
import { direction, inSight, ordered, places } from "./rows.js";

const ALL = 80; // rows that are drawn without a scroller of their own
// Sizes in pixels, as in style.css: the height of rows and cards, and the minimum width of a cell in a card
const LINE = 34,
  CARD_HEAD = 30,
  CARD_LINE = 36,
  CARD_EDGES = 20,
  CELL = 98;
const WIDE = 112; // the width of a column that takes more than one cell

// numbers, and columns with `largest`, sort the largest first; names sort from A
const natural = (column) => (column.numeric || column.largest ? `-${column.key}` : column.key);

// columns: [{key, head, width, grow, beside, numeric, largest, wrap, value(row), text(row), cell(row), hint}]. The first one names the row.
// `width` is the minimum; columns that `grow` share the remaining width. `cell` creates nodes; a row is redrawn if its `text`
// has changed. In a card, a column `beside` is shown in the line of the name.
export class Table {
  constructor({ id, label, columns, key, empty = "Nothing to show.", sort = "", onsort = null }) {
    Object.assign(this, { columns, key, label, onsort, sorting: sort, rows: [], nodes: new Map(), empty });
    this.head = element("tr", { role: "row" });
    this.body = element("tbody", { role: "rowgroup" });
    this.above = element("tr", { class: "gap", "aria-hidden": "true" }, element("td"));
    this.below = element("tr", { class: "gap", "aria-hidden": "true" }, element("td"));
    this.columnsBox = element("colgroup");
    this.table = element(
      "table",
      { id, role: "table", "aria-label": label },
      this.columnsBox,
      element("thead", { role: "rowgroup" }, this.head),
      this.body,
    );
    this.nothing = element("p", { class: "muted nothing", hidden: true }, empty);
    this.box = element(
      "div",
      { class: "table", role: "group", tabindex: "0", "aria-label": `${label}, arrow keys go from row to row` },
      this.table,
    );
    this.sorter = element("select", { name: `sort-${id}`, onchange: () => this.choose(this.sorter.value) });
    this.sorters = element(
      "label",
      { class: "field inline sorters", hidden: true },
      element("span", {}, "Sort by"),
      this.sorter,
    );
    this.node = element("div", {}, this.sorters, this.box, this.nothing); // a view may put `nothing` and `sorters` elsewhere
    this.box.addEventListener("scroll", () => {
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => this.draw());
    });
    this.box.addEventListener("keydown", (event) => this.step(event));
    this.watcher = new ResizeObserver(() => {
      if (this.box.clientWidth !== this.width) {
        this.layout();
        this.draw();
      }
    });
    this.watcher.observe(this.box);
  }
  close() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.frame);
  }
  use(columns) {
    if (columns !== this.columns) {
      this.columns = columns;
      if (this.shown) this.layout();
    }
  }
  sort(by) {
    this.sorting = by;
    this.layout();
    this.show(this.given);
  }
  choose(by) {
    this.sort(by);
    this.onsort?.(by);
  }
  show(rows) {
    this.given = rows;
    const [name, descending] = direction(this.sorting);
    const column = this.columns.find((each) => each.key === name);
    this.rows = column ? ordered(rows, column.value ?? column.text, descending) : rows;
    this.nothing.hidden = rows.length > 0;
    this.box.hidden = !rows.length;
    const virtual = rows.length > ALL;
    if (virtual !== this.virtual) {
      this.virtual = virtual;
      this.box.classList.toggle("virtual", virtual);
    }
    if (virtual) this.table.setAttribute("aria-rowcount", rows.length + 1);
    else this.table.removeAttribute("aria-rowcount");
    if (!this.shown) this.layout();
    this.sorters.hidden = !this.cards || rows.length < 2;
    this.draw();
  }
  layout() {
    this.width = this.box.clientWidth;
    const total = this.columns.reduce((sum, column) => sum + column.width, 0),
      room = this.width || 1e4;
    this.cards = total > room;
    this.box.classList.toggle("cards", this.cards);
    this.beside = this.cards ? this.columns.filter((column) => column.beside) : [];
    this.shown = this.columns.filter((column) => !this.beside.includes(column));
    const cells = Math.max(3, Math.floor(room / CELL)),
      text = Math.max(3, Math.floor(cells / 2));
    const spans = this.shown.slice(1).map((column) => (column.grow ? text : Math.ceil(column.width / WIDE)));
    this.spans = [cells, ...spans];
    this.height = this.cards ? CARD_HEAD + CARD_LINE * places(spans, cells) + CARD_EDGES : LINE;
    this.box.style.setProperty("--cells", cells);
    this.box.style.setProperty("--card", `${this.height}px`);
    const [name, descending] = direction(this.sorting),
      growing = this.shown.filter((column) => column.grow);
    const wide = (growing.length ? growing : this.shown).reduce((sum, column) => sum + column.width, 0);
    this.columnsBox.replaceChildren(
      ...this.shown.map((column) => {
        const node = element("col"),
          more = growing.length && !column.grow ? 0 : ((room - total) * column.width) / wide;
        node.style.width = `${(100 * (column.width + more)) / room}%`;
        return node;
      }),
    );
    const focused = this.head.contains(document.activeElement)
      ? document.activeElement.closest("th").dataset.key
      : null;
    this.head.replaceChildren(
      ...this.shown.map((column) => {
        const state = column.key === name ? (descending ? "descending" : "ascending") : undefined;
        const by = column.key !== name ? natural(column) : descending ? column.key : `-${column.key}`;
        const inner = this.cards
          ? column.head
          : element("button", { type: "button", title: column.hint, onclick: () => this.choose(by) }, column.head);
        return element(
          "th",
          {
            role: "columnheader",
            scope: "col",
            class: column.numeric ? "n" : undefined,
            "aria-sort": state,
            "data-key": column.key,
          },
          inner,
        );
      }),
    );
    if (focused !== null) this.head.querySelector(`[data-key="${CSS.escape(focused)}"] button`)?.focus();
    const ways = [...new Set([...this.columns.map(natural), this.sorting])];
    this.sorter.replaceChildren(
      ...ways.map((by) => element("option", { value: by, selected: by === this.sorting }, this.called(by))),
    );
    this.sorters.hidden = !this.cards || this.rows.length < 2;
    this.nodes.clear(); // with other columns every row must be drawn again
    this.body.replaceChildren(this.above, this.below);
  }
  called(by) {
    const [name, descending] = direction(by),
      column = this.columns.find((each) => each.key === name);
    return column ? `${column.head}, ${descending ? "descending" : "ascending"}` : "as listed";
  }
  draw() {
    if (!this.shown) return;
    const count = this.rows.length;
    const [first, last] = this.virtual
      ? inSight(count, this.height, this.box.scrollTop, this.box.clientHeight || 700)
      : [0, count];
    const active = this.body.contains(document.activeElement) ? document.activeElement : null;
    const held = active?.closest("tr")?.dataset.key,
      which = held === undefined ? -1 : [...active.closest("tr").querySelectorAll("a, button")].indexOf(active);
    const wanted = new Set();
    let after = this.above;
    this.above.firstChild.style.height = `${first * this.height}px`;
    this.below.firstChild.style.height = `${(count - last) * this.height}px`;
    this.above.hidden = first === 0;
    this.below.hidden = last >= count;
    for (let at = first; at < last; at += 1) {
      const node = this.row(this.rows[at], at);
      wanted.add(node.dataset.key);
      if (after.nextSibling !== node) after.after(node);
      after = node;
    }
    for (const [key, node] of this.nodes)
      if (!wanted.has(key)) {
        node.remove();
        this.nodes.delete(key);
      }
    if (after.nextSibling !== this.below) after.after(this.below);
    if (held === undefined || document.activeElement === active) return;
    // if the row was redrawn, has moved or is not visible, keep the focus on it or in the table
    const links = this.nodes.get(held)?.querySelectorAll("a, button") ?? [];
    (links[which] ?? links[0] ?? this.nodes.get(held) ?? this.box).focus({ preventScroll: true });
  }
  row(row, at) {
    const key = String(this.key(row));
    let node = this.nodes.get(key);
    const signature = this.columns.map((column) => column.text(row)).join("\u0000");
    if (!node) {
      node = element("tr", { role: "row", tabindex: "-1", "data-key": key });
      this.nodes.set(key, node);
    }
    if (this.virtual) node.setAttribute("aria-rowindex", at + 2);
    node.dataset.at = at;
    if (node.signature === signature) return node;
    node.signature = signature;
    const inside = (column) => [column.cell ? column.cell(row) : column.text(row)].flat();
    node.replaceChildren(
      ...this.shown.map((column, number) => {
        const words = column.text(row),
          inner = inside(column),
          plain = inner.every((each) => typeof each === "string");
        const more = number
          ? this.cards
            ? [element("span", { class: "head", "aria-hidden": "true" }, column.head)]
            : []
          : this.beside.map((each) => element("span", { class: "beside" }, ...inside(each)));
        const cell = element(number ? "td" : "th", {
          class: column.numeric ? "n" : column.wrap ? "wraps" : undefined,
          role: number ? "cell" : "rowheader",
          scope: number ? undefined : "row",
          title: plain ? words : undefined,
        });
        cell.append(
          ...(number
            ? [...more, ...inner]
            : this.beside.length
              ? [element("span", { class: "named" }, ...inner), ...more]
              : inner),
        );
        if (this.cards) cell.style.gridColumn = `span ${this.spans[number]}`;
        return cell;
      }),
    );
    return node;
  }
  step(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || event.target.closest("thead") || event.ctrlKey || event.altKey || event.metaKey)
      return;
    event.preventDefault();
    const held = event.target.closest("tbody tr")?.dataset.at;
    const at = Math.max(
      0,
      Math.min(
        this.rows.length - 1,
        held === undefined ? (steps[event.key] === Infinity ? Infinity : 0) : Number(held) + steps[event.key],
      ),
    );
    if (this.virtual) {
      const top = at * this.height,
        room = this.box.clientHeight - 40;
      if (top < this.box.scrollTop || top + this.height > this.box.scrollTop + room) {
        this.box.scrollTop = Math.max(0, top - room / 2);
        this.draw();
      }
    }
    const row = this.body.querySelector(`tr[data-at="${at}"]`);
    (row?.querySelector("a, button") ?? row)?.focus({ preventScroll: this.virtual });
  }
  count(node, total, what) {
    say(
      node,
      this.rows.length === total ? `${whole(total)} ${what}` : `${whole(this.rows.length)} of ${whole(total)} ${what}`,
    );
  }
}
