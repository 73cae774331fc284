// The load of the members as bars, the unevenness as max/mean, and how much of the budget of moves is used.

import { element, svg } from "./dom.js";
import { number, plural } from "./format.js";
import { choice, field, figures, section } from "./parts.js";
import { now, state } from "./state.js";

// The busiest member as a multiple of the mean; null for unknown. Pure
export const unevenness = (loads) => {
  if (!loads.length || loads.some((load) => load === null || load === undefined)) return null;
  const total = loads.reduce((sum, load) => sum + load, 0);
  return total === 0 ? 1 : (Math.max(...loads) * loads.length) / total;
};
export const ratio = (value) => (value === null ? "unknown" : value.toFixed(2));

const HEIGHT = 110, FLOOR = 14, WIDEST = 60;
// rows: [{name, now, then}], `then` undefined without a second moment; null for unknown. A bar for each member, the highest first
export const bars = (rows, width, words, unit) => {
  const both = rows.some((row) => row.then !== undefined), of = (row) => Math.max(row.now ?? 0, row.then ?? 0);
  const order = [...rows].sort((a, b) => of(b) - of(a)), most = Math.max(1, ...order.map(of)), step = Math.min(WIDEST, width / Math.max(1, order.length));
  const mean = (end) => { const known = rows.filter((row) => row[end] !== null && row[end] !== undefined); return known.length ? known.reduce((sum, row) => sum + row[end], 0) / known.length : 0; };
  const y = (value) => FLOOR + (HEIGHT - FLOOR) * (1 - value / most), end = both ? "then" : "now";
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT + 4}`, role: "img", "aria-label": words });
  picture.append(svg("line", { class: "axis", x1: 0, x2: width, y1: HEIGHT, y2: HEIGHT }));
  order.forEach((row, at) => {
    const gap = step > 6 ? 2 : step > 2 ? 0.6 : 0, x = at * step + gap / 2, wide = Math.max(0.5, step - gap), told = (value) => (value === null || value === undefined ? "unknown" : number(value));
    const one = svg("g", {}, svg("title", {}, both ? `${row.name}: ${told(row.now)} before, ${told(row.then)} after ${unit}` : `${row.name}: ${told(row.now)} ${unit}`));
    if (both) one.append(svg("rect", { class: "was", x, y: y(row.now ?? 0), width: wide / 2, height: HEIGHT - y(row.now ?? 0) }), svg("rect", { class: "will", x: x + wide / 2, y: y(row.then ?? 0), width: wide / 2, height: HEIGHT - y(row.then ?? 0) }));
    else one.append(svg("rect", { class: "will", x, y: y(row.now ?? 0), width: wide, height: HEIGHT - y(row.now ?? 0) }));
    picture.append(one);
  });
  picture.append(svg("line", { class: "mean", x1: 0, x2: width, y1: y(mean(end)), y2: y(mean(end)) }), svg("text", { x: width, y: Math.max(10, y(mean(end)) - 3), "text-anchor": "end" }, `mean ${number(mean(end))}`), svg("text", { x: 0, y: 10 }, number(most)));
  return picture;
};

const LOADS = [["", "partitions"], ["lag", "lag"]];
export const loadOfMembers = (route, query) => {
  const numbers = element("div"), picture = element("div", { class: "load" });
  const what = choice("load", LOADS, route.query.load ?? "", (value) => { route.query.load = value; query({ load: value }); update(); });
  const node = section("Load by member", element("div", { class: "filters" }, field("Load", what)), numbers, picture);
  const update = () => {
    const members = state.group?.members ?? [], lag = (member) => state.lag?.members[member.id] ?? (state.lag && !member.partitions ? 0 : null);
    const of = what.value === "lag" ? lag : (member) => member.partitions;
    const budget = state.group?.budget, recent = budget ? budget.moved.filter(([at]) => at > now() - 60).reduce((sum, [, count]) => sum + count, 0) : 0;
    node.hidden = !members.length;
    const uneven = unevenness(members.map(of));
    numbers.replaceChildren(figures([
      ["max/mean of partitions", ratio(unevenness(members.map((member) => member.partitions)))], ["max/mean of lag", ratio(unevenness(members.map(lag)))],
      budget && budget.at_once !== null ? ["on the move, of the budget", `${budget.moving} of ${budget.at_once}`, budget.moving >= budget.at_once] : null,
      budget && budget.per_minute !== null ? ["moved in a minute, of the budget", `${recent} of ${budget.per_minute}`, recent >= budget.per_minute] : null,
      budget ? null : ["budget of moves", "no limit"],
    ]));
    const words = `${what.value === "lag" ? "Lag" : "Partitions"} of ${plural(members.length, "member")}: max/mean ${ratio(uneven)}; the table of members has the numbers`;
    picture.replaceChildren(bars(members.map((member) => ({ name: member.name, now: of(member) })), Math.max(260, picture.clientWidth || 600), words, what.value === "lag" ? "records" : "partitions"));
  };
  return { node, update };
};
