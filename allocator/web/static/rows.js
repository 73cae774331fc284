// Rows of tables: order, filters, cells of cards, visible rows. Pure.

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);

// Unknown values come last in both directions; rows that are equal keep their order
export const ordered = (rows, value, descending) => {
  const known = [],
    unknown = [];
  rows.forEach((row, at) => {
    const v = value(row);
    (v === null || v === undefined ? unknown : known).push([v, at, row]);
  });
  known.sort((a, b) => (descending ? -1 : 1) * compare(a[0], b[0]) || a[1] - b[1]);
  return [...known, ...unknown].map((each) => each.at(-1));
};

// Returns whether every word of the search occurs in the text
export const matches = (text, search) => {
  const inside = text.toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => inside.includes(word));
};

// Returns the number of lines that cells with these spans fill in a grid with this number of columns
export const places = (spans, columns) => {
  let lines = spans.length ? 1 : 0,
    taken = 0;
  for (const span of spans) {
    if (taken + span > columns) {
      lines += 1;
      taken = 0;
    }
    taken += span;
  }
  return lines;
};

// The rows [first, last) to draw for a scroll position, a few more than are visible
export const inSight = (count, height, top, room, spare = 12) => {
  const first = Math.max(0, Math.min(count, Math.floor(top / height)) - spare);
  return [first, Math.min(count, Math.ceil((top + room) / height) + spare)];
};

// "-lag" -> ["lag", true]
export const direction = (sort) => (sort?.startsWith("-") ? [sort.slice(1), true] : [sort ?? "", false]);
