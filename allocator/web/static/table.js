// A table that sorts, folds columns that do not fit under the first one, and draws only the visible rows.

import { element, say } from "./dom.js";
import { whole } from "./format.js";
import { direction, fit, inSight, ordered } from "./rows.js";

const ALL = 80; // rows that are drawn without a scroller of their own
const LINE = 34, TALL = 48, FOLDED = 18; // heights in pixels
const FOLD = 105; // the width that a folded column takes, about

// columns: [{key, head, width, rank, numeric, value(row), text(row), cell(row), hint}]. The first one names the row. A
// column without `rank` always stays; `cell` makes nodes, `text` is what is compared to see whether a row changed. `tall`:
// cells have two lines.
export class Table {
  constructor({ id, label, columns, key, empty = "Nothing to show.", sort = "", tall = false, onsort = null }) {
    Object.assign(this, { columns, key, label, onsort, sorting: sort, tall, rows: [], nodes: new Map(), empty });
    this.head = element("tr");
    this.body = element("tbody");
    this.above = element("tr", { class: "gap", "aria-hidden": "true" }, element("td"));
    this.below = element("tr", { class: "gap", "aria-hidden": "true" }, element("td"));
    this.columnsBox = element("colgroup");
    this.table = element("table", { id, "aria-label": label }, this.columnsBox, element("thead", {}, this.head), this.body);
    this.nothing = element("p", { class: "muted", hidden: true }, empty);
    this.box = element("div", { class: "table", role: "group", tabindex: "0", "aria-label": `${label}, arrow keys go from row to row` }, this.table);
    this.node = element("div", {}, this.box, this.nothing);
    this.box.addEventListener("scroll", () => { cancelAnimationFrame(this.frame); this.frame = requestAnimationFrame(() => this.draw()); });
    this.box.addEventListener("keydown", (event) => this.step(event));
    this.watcher = new ResizeObserver(() => { if (this.box.clientWidth !== this.width) { this.layout(); this.draw(); } });
    this.watcher.observe(this.box);
  }
  close() { this.watcher.disconnect(); cancelAnimationFrame(this.frame); }
  use(columns) { if (columns !== this.columns) { this.columns = columns; if (this.shown) this.layout(); } }
  sort(by) { this.sorting = by; this.layout(); this.show(this.given); }
  show(rows) {
    this.given = rows;
    const [name, descending] = direction(this.sorting);
    const column = this.columns.find((each) => each.key === name);
    this.rows = column ? ordered(rows, column.value ?? column.text, descending) : rows;
    this.nothing.hidden = rows.length > 0;
    this.box.hidden = !rows.length;
    const virtual = rows.length > ALL;
    if (virtual !== this.virtual) { this.virtual = virtual; this.box.classList.toggle("virtual", virtual); }
    if (virtual) this.table.setAttribute("aria-rowcount", rows.length + 1); else this.table.removeAttribute("aria-rowcount");
    if (!this.shown) this.layout();
    this.draw();
  }
  layout() {
    this.width = this.box.clientWidth;
    [this.shown, this.folded] = fit(this.columns, this.width || 1e4);
    this.line = this.tall ? TALL : LINE;
    this.lines = Math.min(3, Math.ceil((this.folded.length * FOLD) / (this.width || 1e4)));
    this.height = this.line + this.lines * FOLDED;
    this.box.style.setProperty("--row", `${this.line}px`);
    this.box.style.setProperty("--fold", `${this.lines * FOLDED}px`);
    this.box.style.setProperty("--lines", this.lines);
    const [name, descending] = direction(this.sorting);
    const total = this.shown.reduce((sum, column) => sum + column.width, 0);
    this.columnsBox.replaceChildren(...this.shown.map((column) => { const node = element("col"); node.style.width = `${(100 * column.width) / total}%`; return node; }));
    const focused = this.head.contains(document.activeElement) ? document.activeElement.closest("th").dataset.key : null;
    this.head.replaceChildren(...this.shown.map((column) => {
      const button = element("button", { type: "button", title: column.hint }, column.head);
      button.addEventListener("click", () => {
        const by = direction(this.sorting);
        // numbers sort from the largest first, names from A
        this.sort(by[0] !== column.key ? (column.numeric ? `-${column.key}` : column.key) : by[1] ? column.key : `-${column.key}`);
        this.onsort?.(this.sorting);
      });
      const state = column.key === name ? (descending ? "descending" : "ascending") : undefined;
      return element("th", { scope: "col", class: column.numeric ? "n" : undefined, "aria-sort": state, "data-key": column.key }, button);
    }));
    if (focused !== null) this.head.querySelector(`[data-key="${CSS.escape(focused)}"] button`)?.focus();
    this.nodes.clear(); // with other columns every row must be drawn again
    this.body.replaceChildren(this.above, this.below);
  }
  draw() {
    if (!this.shown) return;
    const count = this.rows.length;
    const [first, last] = this.virtual ? inSight(count, this.height, this.box.scrollTop, this.box.clientHeight || 700) : [0, count];
    const active = this.body.contains(document.activeElement) ? document.activeElement : null;
    const held = active?.closest("tr")?.dataset.key, which = held === undefined ? -1 : [...active.closest("tr").querySelectorAll("a, button")].indexOf(active);
    const wanted = new Set();
    let after = this.above;
    this.above.firstChild.style.height = `${first * this.height}px`;
    this.below.firstChild.style.height = `${(count - last) * this.height}px`;
    this.above.hidden = first === 0; this.below.hidden = last >= count;
    for (let at = first; at < last; at += 1) {
      const node = this.row(this.rows[at], at);
      wanted.add(node.dataset.key);
      for (const each of [node, node.fold]) if (each) { if (after.nextSibling !== each) after.after(each); after = each; }
    }
    for (const [key, node] of this.nodes) if (!wanted.has(key)) { node.fold?.remove(); node.remove(); this.nodes.delete(key); }
    if (after.nextSibling !== this.below) after.after(this.below);
    if (held === undefined || document.activeElement === active) return;
    // if the row was redrawn, has moved or is not visible, keep the focus on it or in the table
    const places = this.nodes.get(held)?.querySelectorAll("a, button") ?? [];
    (places[which] ?? places[0] ?? this.box).focus({ preventScroll: true });
  }
  row(row, at) {
    const key = String(this.key(row));
    let node = this.nodes.get(key);
    const signature = this.columns.map((column) => column.text(row)).join("\u0000");
    if (!node) { node = element("tr", { "data-key": key }); this.nodes.set(key, node); }
    if (this.virtual) node.setAttribute("aria-rowindex", at + 2);
    node.dataset.at = at;
    if (node.signature === signature) return node;
    node.signature = signature;
    if (this.folded.length) {
      node.fold ??= element("tr", { class: "fold" }, element("td", { colspan: this.shown.length }, element("small")));
      node.fold.firstChild.firstChild.replaceChildren(...this.folded.flatMap((each, number) => [number ? " · " : "", each.short === "" ? "" : element("span", { class: "head" }, `${each.short ?? each.head} `), each.text(row)]));
    }
    node.replaceChildren(...this.shown.map((column, number) => {
      const words = column.text(row), inner = column.cell ? column.cell(row) : words;
      return element(number ? "td" : "th", { class: column.numeric ? "n" : undefined, scope: number ? undefined : "row", title: typeof inner === "string" ? words : undefined }, ...[inner].flat());
    }));
    node.classList.toggle("folded", this.folded.length > 0);
    return node;
  }
  step(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || event.target.closest("thead") || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const held = event.target.closest("tbody tr")?.dataset.at;
    const at = Math.max(0, Math.min(this.rows.length - 1, held === undefined ? (steps[event.key] === Infinity ? Infinity : 0) : Number(held) + steps[event.key]));
    if (this.virtual) {
      const top = at * this.height, room = this.box.clientHeight - 40;
      if (top < this.box.scrollTop || top + this.height > this.box.scrollTop + room) { this.box.scrollTop = Math.max(0, top - room / 2); this.draw(); }
    }
    const row = this.body.querySelector(`tr[data-at="${at}"]`);
    (row?.querySelector("a, button") ?? row)?.focus({ preventScroll: this.virtual });
  }
  count(node, total, what) { say(node, this.rows.length === total ? `${whole(total)} ${what}` : `${whole(this.rows.length)} of ${whole(total)} ${what}`); }
}
