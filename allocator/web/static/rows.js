// Rows of tables: order, filters, columns that fit, visible rows. Pure.

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);

// Unknown values come last in both directions; rows that are equal keep their order
export const ordered = (rows, value, descending) => {
  const known = [], unknown = [];
  rows.forEach((row, at) => { const v = value(row); (v === null || v === undefined ? unknown : known).push([v, at, row]); });
  known.sort((a, b) => (descending ? -1 : 1) * compare(a[0], b[0]) || a[1] - b[1]);
  return [...known, ...unknown].map((each) => each.at(-1));
};

// Every word of the search has to occur somewhere in the text
export const matches = (text, search) => {
  const inside = text.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => inside.includes(word));
};

// The columns that fit into a width: those with the smallest `rank` are folded under the first column before others
export const fit = (columns, width) => {
  const shown = new Set(columns);
  let taken = columns.reduce((sum, column) => sum + column.width, 0);
  for (const column of [...columns].sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0))) {
    if (taken <= width) break;
    if (column === columns[0] || column.rank === undefined) continue;
    shown.delete(column);
    taken -= column.width;
  }
  return [columns.filter((column) => shown.has(column)), columns.filter((column) => !shown.has(column))];
};

// The rows [first, last) to draw for a scroll position, a few more than are visible
export const inSight = (count, height, top, room, spare = 12) => {
  const first = Math.max(0, Math.min(count, Math.floor(top / height)) - spare);
  return [first, Math.min(count, Math.ceil((top + room) / height) + spare)];
};

// "-lag" -> ["lag", true]
export const direction = (sort) => (sort?.startsWith("-") ? [sort.slice(1), true] : [sort ?? "", false]);
