// The load of the members as bars, its imbalance as max/mean, and the used part of the budget of moves. For a group that
// follows load, also the load that its members report.

import { element, svg } from "./dom.js";
import { number, plural, UNKNOWN, whole } from "./format.js";
import { choice, field, figures, panel } from "./parts.js";
import { inKafka, now, state } from "./state.js";

// Returns the load of the busiest member as a multiple of the mean; null if unknown. Pure
export const unevenness = (loads) => {
  if (!loads.length || loads.some((load) => load === null || load === undefined)) return null;
  const total = loads.reduce((sum, load) => sum + load, 0);
  return total === 0 ? 1 : (Math.max(...loads) * loads.length) / total;
};
export const ratio = (value) => (value === null ? "unknown" : value.toFixed(2));

const HEIGHT = 110, FLOOR = 14, WIDEST = 60;
// Draws a bar for each member, the highest first. rows: [{name, now, then}]; `then` is undefined without a second time, null
// means unknown. `known`: the mean, if it is not the mean of the rows
export const bars = (rows, width, words, unit, known) => {
  const both = rows.some((row) => row.then !== undefined), of = (row) => Math.max(row.now ?? 0, row.then ?? 0);
  const order = [...rows].sort((a, b) => of(b) - of(a)), most = Math.max(0, ...order.map(of)) || 1, step = Math.min(WIDEST, width / Math.max(1, order.length));
  const mean = (end) => { const some = rows.filter((row) => row[end] !== null && row[end] !== undefined); return some.length ? some.reduce((sum, row) => sum + row[end], 0) / some.length : null; };
  const y = (value) => FLOOR + (HEIGHT - FLOOR) * (1 - value / most), end = both ? "then" : "now";
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT + 4}`, role: "img", "aria-label": words });
  picture.append(svg("line", { class: "axis", x1: 0, x2: width, y1: HEIGHT, y2: HEIGHT }));
  order.forEach((row, at) => {
    const gap = step > 6 ? 2 : step > 2 ? 0.6 : 0, x = at * step + gap / 2, wide = Math.max(0.5, step - gap);
    const one = svg("g", {}, svg("title", {}, both ? `${row.name}: ${number(row.now)} before, ${number(row.then)} after ${unit}` : `${row.name}: ${number(row.now)} ${unit}`));
    if (!both && number(row.now) === UNKNOWN) one.append(svg("rect", { class: "unknown", x: x + 0.5, y: FLOOR, width: Math.max(0.5, wide - 1), height: HEIGHT - FLOOR }));
    else if (both) one.append(svg("rect", { class: "was", x, y: y(row.now ?? 0), width: wide / 2, height: HEIGHT - y(row.now ?? 0) }), svg("rect", { class: "will", x: x + wide / 2, y: y(row.then ?? 0), width: wide / 2, height: HEIGHT - y(row.then ?? 0) }));
    else one.append(svg("rect", { class: "will", x, y: y(row.now ?? 0), width: wide, height: HEIGHT - y(row.now ?? 0) }));
    picture.append(one);
  });
  const middle = known === undefined ? mean(end) : known;
  if (middle !== null) picture.append(svg("line", { class: "mean", x1: 0, x2: width, y1: y(middle), y2: y(middle) }), svg("text", { x: width, y: Math.max(10, y(middle) - 3), "text-anchor": "end" }, `mean ${number(middle)}`), svg("text", { x: 0, y: 10 }, number(most)));
  return picture;
};

const LOADS = [["partitions", "partitions"], ["lag", "lag"], ["reported", "reported load"]];
const UNITS = { records: "records/s", bytes: "bytes/s", handler_s: "s of the handler/s", reported: "of the reported load" };
// Returns the load that a member reports per unit of weight, as max/mean uses it; null if unknown. Pure
export const reported = (loads) => (member) => { const load = loads.members[member.id] ?? null; return load === null ? null : load / member.weight; };
export const loadOfMembers = (route, query) => {
  const numbers = element("div"), alone = element("p", { class: "muted" }, "Only one member."), picture = element("div", { class: "load" });
  const what = choice("load", LOADS, "partitions", (value) => { route.query.load = value; query({ load: value }); update(); });
  const chooser = field("Load", what, "inline"), node = panel("Load by member", [chooser, alone], numbers, picture);
  const update = () => {
    const members = state.group?.members ?? [], loads = state.loads, lag = (member) => state.lag?.members[member.id] ?? (state.lag && !member.partitions ? 0 : null);
    const offered = Object.fromEntries([["partitions", (member) => member.partitions], ["lag", lag], ...(loads ? [["reported", reported(loads)]] : [])]);
    for (const option of what.options) option.hidden = option.disabled = !(option.value in offered);
    what.value = route.query.load in offered ? route.query.load : loads ? "reported" : "partitions";
    const of = offered[what.value], unit = { partitions: "partitions", lag: "records", reported: `${UNITS[loads?.source]}${members.some((member) => member.weight > 0 && member.weight !== 1) ? " per unit of weight" : ""}` }[what.value];
    const budget = state.group?.budget, recent = budget ? budget.moved.filter(([at]) => at > now() - 60).reduce((sum, [, count]) => sum + count, 0) : 0;
    node.hidden = !members.length;
    const one = members.length === 1; // nothing to compare
    for (const each of [chooser, numbers, picture]) each.hidden = one;
    alone.hidden = !one;
    if (one) return;
    const uneven = what.value === "reported" ? loads.max_over_mean : unevenness(members.map(of));
    numbers.replaceChildren(figures([
      loads && ["max/mean of reported load", ratio(loads.max_over_mean)], loads?.unknown ? ["partitions of unknown load", whole(loads.unknown)] : null,
      ["max/mean of partitions", ratio(unevenness(members.map((member) => member.partitions)))], ["max/mean of lag", ratio(unevenness(members.map(lag)))],
      budget && budget.at_once !== null ? ["on the move, of the budget", `${budget.moving} of ${budget.at_once}`, budget.moving >= budget.at_once] : null,
      budget && budget.per_minute !== null ? ["moved in a minute, of the budget", `${recent} of ${budget.per_minute}`, recent >= budget.per_minute] : null,
      budget || inKafka() ? null : ["budget of moves", "no limit"],
    ]));
    const words = `${{ partitions: "Partitions", lag: "Lag", reported: "Reported load" }[what.value]} of ${plural(members.length, "member")}: max/mean ${ratio(uneven)}; the table of members has the numbers`;
    picture.replaceChildren(bars(members.map((member) => ({ name: member.name, now: of(member) })), Math.max(260, picture.clientWidth || 600), words, unit, what.value === "reported" ? loads.mean : undefined));
  };
  return { node, update };
};
