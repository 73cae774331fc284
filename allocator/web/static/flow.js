// The moves of a rebalance: bands from the former owners on one side to the new owners on the other. `layout` is pure.

import { svg } from "./dom.js";
import { plural } from "./format.js";

const NOBODY = "no owner";

// The largest ends keep their names; the others are combined. moves: [{from, to, partitions}]; null means no owner
const named = (moves, end, most) => {
  const sums = new Map();
  for (const move of moves) sums.set(move[end] ?? NOBODY, (sums.get(move[end] ?? NOBODY) ?? 0) + move.partitions);
  const order = [...sums].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
  const kept = new Set(order.length > most ? order.slice(0, most - 1) : order);
  const rest = order.length - kept.size;
  return (move) => (kept.has(move[end] ?? NOBODY) ? (move[end] ?? NOBODY) : `${rest} others`);
};

// {height, left, right, bands}: ends are {name, y, height, partitions}; bands are {from, to, y0, y1, height, partitions}
export const layout = (moves, { most = 24, least = 15, gap = 6, scale = 360 } = {}) => {
  const left = named(moves, "from", most),
    right = named(moves, "to", most);
  const pairs = new Map();
  for (const move of moves) {
    const key = JSON.stringify([left(move), right(move)]);
    pairs.set(key, (pairs.get(key) ?? 0) + move.partitions);
  }
  const bands = [...pairs].map(([key, partitions]) => ({
    from: JSON.parse(key)[0],
    to: JSON.parse(key)[1],
    partitions,
  }));
  const total = bands.reduce((sum, band) => sum + band.partitions, 0) || 1;
  const column = (end) => {
    const sums = new Map();
    for (const band of bands) sums.set(band[end], (sums.get(band[end]) ?? 0) + band.partitions);
    let y = 0;
    const rest = (name) => / others$/.test(name);
    return [...sums]
      .sort((a, b) => rest(a[0]) - rest(b[0]) || b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
      .map(([name, partitions]) => {
        const height = Math.max(least, (partitions / total) * scale),
          node = { name, partitions, y, height, used: 0 };
        y += height + gap;
        return node;
      });
  };
  const ends = { from: column("from"), to: column("to") };
  const at = (end, name) => ends[end].find((node) => node.name === name);
  const place = new Map(ends.to.map((node, index) => [node.name, index]));
  // bands leave an end in the order of their other ends, so that few of them cross
  for (const node of ends.from) {
    for (const band of bands
      .filter((each) => each.from === node.name)
      .sort((a, b) => place.get(a.to) - place.get(b.to))) {
      const to = at("to", band.to),
        part = (end) => (band.partitions / end.partitions) * end.height;
      band.h0 = part(node);
      band.h1 = part(to);
      band.y0 = node.y + node.used;
      node.used += band.h0;
      band.y1 = to.y + to.used;
      to.used += band.h1;
    }
  }
  const bottom = (nodes) => (nodes.length ? nodes.at(-1).y + nodes.at(-1).height : 0);
  return { height: Math.max(bottom(ends.from), bottom(ends.to)), left: ends.from, right: ends.to, bands };
};

// `look(name)` returns {fill}, or null for a name that is not a member
export const flow = (moves, width, look) => {
  const narrow = width < 560,
    found = layout(moves, { most: narrow ? 12 : 24 });
  const box = narrow ? 8 : 12,
    words = Math.min(260, width * (narrow ? 0.34 : 0.28)),
    x0 = words,
    x1 = width - words;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${found.height + 22}`,
    role: "img",
    "aria-label": `Moves between members: ${plural(found.bands.length, "flow")}; the table below has them`,
  });
  picture.append(svg("text", { x: x0, y: 11, "text-anchor": "end" }, "from"), svg("text", { x: x1, y: 11 }, "to"));
  const down = 20,
    mid = (x0 + x1) / 2;
  for (const band of [...found.bands].sort((a, b) => b.partitions - a.partitions)) {
    const a = down + band.y0,
      b = down + band.y1;
    picture.append(
      svg(
        "path",
        {
          class: "band",
          fill: look(band.to)?.fill ?? "var(--hatch)",
          d: `M${x0 + box} ${a}C${mid} ${a} ${mid} ${b} ${x1 - box} ${b}L${x1 - box} ${b + band.h1}C${mid} ${b + band.h1} ${mid} ${a + band.h0} ${x0 + box} ${a + band.h0}Z`,
        },
        svg("title", {}, `${band.from} → ${band.to}: ${plural(band.partitions, "partition")}`),
      ),
    );
  }
  const letters = Math.floor(words / 7.2);
  for (const [nodes, x, anchor, tx] of [
    [found.left, x0, "end", x0 - 6],
    [found.right, x1 - box, "start", x1 + 6],
  ]) {
    for (const node of nodes) {
      const count = ` (${node.partitions})`,
        short =
          node.name.length + count.length > letters
            ? `${node.name.slice(0, Math.max(3, letters - count.length - 1))}…`
            : node.name;
      picture.append(
        svg("rect", {
          x,
          y: down + node.y,
          width: box,
          height: node.height,
          fill: look(node.name)?.fill ?? "var(--hatch)",
        }),
        svg(
          "text",
          { class: "end", x: tx, y: down + node.y + node.height / 2 + 4, "text-anchor": anchor },
          `${short}${count}`,
          svg("title", {}, node.name),
        ),
      );
    }
  }
  return picture;
};
