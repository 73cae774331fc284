// The load of members before and after a plan as bars, its imbalance as max/mean, and the used part of the budget of moves.

import { element, svg } from "./dom.js";
import { number, whole } from "./format.js";
import { figures } from "./parts.js";
import { now, state } from "./state.js";

// Returns the load of the busiest member as a multiple of the mean; null if unknown. Pure
export const unevenness = (loads) => {
  if (!loads.length || loads.some((load) => load === null || load === undefined)) return null;
  const total = loads.reduce((sum, load) => sum + load, 0);
  return total === 0 ? 1 : (Math.max(...loads) * loads.length) / total;
};
export const ratio = (value) => (value === null ? "unknown" : value.toFixed(2));

const HEIGHT = 110,
  FLOOR = 14,
  WIDEST = 60;
// Draws two bars for each member, before and after, the highest first. rows: [{name, now, then}]
export const bars = (rows, width, words, unit) => {
  const of = (row) => Math.max(row.now ?? 0, row.then ?? 0),
    order = [...rows].sort((a, b) => of(b) - of(a));
  const most = Math.max(0, ...order.map(of)) || 1,
    step = Math.min(WIDEST, width / Math.max(1, order.length)),
    gap = step > 6 ? 2 : step > 2 ? 0.6 : 0,
    wide = Math.max(0.5, step - gap) / 2;
  const y = (value) => FLOOR + (HEIGHT - FLOOR) * (1 - (value ?? 0) / most),
    known = rows.filter((row) => row.then !== null);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT + 4}`, role: "img", "aria-label": words });
  const bar = (kind, x, value) => svg("rect", { class: kind, x, y: y(value), width: wide, height: HEIGHT - y(value) });
  picture.append(
    svg("line", { class: "axis", x1: 0, x2: width, y1: HEIGHT, y2: HEIGHT }),
    ...order.map((row, at) =>
      svg(
        "g",
        {},
        svg("title", {}, `${row.name}: ${number(row.now)} before, ${number(row.then)} after ${unit}`),
        bar("was", at * step + gap / 2, row.now),
        bar("will", at * step + gap / 2 + wide, row.then),
      ),
    ),
  );
  if (known.length) {
    const middle = known.reduce((sum, row) => sum + row.then, 0) / known.length;
    picture.append(
      svg("line", { class: "mean", x1: 0, x2: width, y1: y(middle), y2: y(middle) }),
      svg("text", { x: width, y: Math.max(10, y(middle) - 3), "text-anchor": "end" }, `mean ${number(middle)}`),
      svg("text", { x: 0, y: 10 }, number(most)),
    );
  }
  return picture;
};

// How far the members are from equal loads, and the used part of the budget of moves
export const imbalance = () => {
  const { members, budget } = state.group,
    loads = state.loads,
    lag = (member) => state.lag?.members[member.id] ?? (state.lag && !member.partitions ? 0 : null);
  const recent = budget ? budget.moved.filter(([at]) => at > now() - 60).reduce((sum, [, count]) => sum + count, 0) : 0;
  return figures(
    members.length < 2
      ? []
      : [
          loads && ["max/mean of reported load", ratio(loads.max_over_mean)],
          loads?.unknown ? ["partitions of unknown load", whole(loads.unknown)] : null,
          ["max/mean of partitions", ratio(unevenness(members.map((member) => member.partitions)))],
          ["max/mean of lag", ratio(unevenness(members.map(lag)))],
          budget && budget.at_once !== null
            ? ["on the move, of the budget", `${budget.moving} of ${budget.at_once}`, budget.moving >= budget.at_once]
            : null,
          budget && budget.per_minute !== null
            ? ["moved in a minute, of the budget", `${recent} of ${budget.per_minute}`, recent >= budget.per_minute]
            : null,
        ],
  );
};
