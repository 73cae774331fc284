// All groups in one table.

import { element, link } from "./dom.js";
import { age, ago, number, plural, rate, span, whole } from "./format.js";
import { filterRow, findingBadges, phaseBadge, phaseOf } from "./parts.js";
import { build } from "./route.js";
import { matches } from "./rows.js";
import { now, state } from "./state.js";
import { Table } from "./table.js";

const weight = (group) => 1e6 * group.findings.critical + 1e3 * group.findings.warning + group.findings.info;
const last = (group) =>
  group.last_rebalance === null
    ? "none seen"
    : group.last_rebalance.ended === null
      ? "in progress"
      : `${ago(group.last_rebalance.began, now())}${group.last_rebalance.took_s === null ? "" : ` (${span(group.last_rebalance.took_s)})`}`;

const COLUMNS = [
  {
    key: "group",
    head: "group",
    width: 110,
    grow: true,
    text: (g) => g.group,
    cell: (g) => link(build({ view: "summary", group: g.group }), g.group),
  },
  {
    key: "state",
    head: "state",
    width: 114,
    beside: true,
    text: phaseOf,
    cell: (g) => phaseBadge(g, state.overview.ready),
  },
  {
    key: "findings",
    head: "findings",
    width: 195,
    beside: true,
    largest: true,
    value: weight,
    text: (g) => findingText(g.findings),
    cell: (g) => findingBadges(g.findings),
  },
  { key: "members", head: "members", width: 85, numeric: true, value: (g) => g.members, text: (g) => whole(g.members) },
  {
    key: "partitions",
    head: "partitions",
    width: 88,
    numeric: true,
    value: (g) => g.partitions,
    text: (g) => whole(g.partitions),
  },
  {
    key: "unowned",
    head: "unowned",
    width: 83,
    numeric: true,
    value: (g) => g.unowned,
    text: (g) => whole(g.unowned),
    cell: (g) => (g.unowned ? element("b", { class: "wrong" }, whole(g.unowned)) : whole(g.unowned)),
  },
  {
    key: "lag",
    head: "lag",
    width: 75,
    numeric: true,
    value: (g) => g.lag,
    text: (g) => number(g.lag),
    hint: "records that are written and not committed",
  },
  {
    key: "age",
    head: "behind",
    width: 84,
    numeric: true,
    value: (g) => g.lag_s ?? g.lag_least_s,
    text: (g) => age(g.lag_s, g.lag_least_s),
    hint: "for how long the oldest of these records has waited",
  },
  {
    key: "consumed",
    head: "committed",
    width: 96,
    numeric: true,
    value: (g) => g.consumed,
    text: (g) => rate(g.consumed),
  },
  {
    key: "produced",
    head: "written",
    width: 75,
    numeric: true,
    value: (g) => g.produced,
    text: (g) => rate(g.produced),
  },
  {
    key: "rebalance",
    head: "last rebalance",
    width: 156,
    numeric: true,
    value: (g) => g.last_rebalance?.began ?? null,
    text: last,
  },
];
const findingText = (counts) =>
  ["critical", "warning", "info"]
    .filter((each) => counts[each])
    .map((each) => `${counts[each]} ${each}`)
    .join(", ") || "none";
const STATES = [
  ["", "any state"],
  ["stable", "stable"],
  ["rebalancing", "rebalancing"],
  ["paused", "paused"],
  ["empty", "empty"],
];
const WRONG = [
  ["", "with or without findings"],
  ["warning", "warnings and critical"],
  ["critical", "critical"],
];

export const overview = (route, query) => {
  const table = new Table({
    id: "groups",
    label: "Groups",
    columns: COLUMNS,
    key: (g) => g.group,
    sort: route.query.sort ?? "group",
    empty: "No group matches.",
    onsort: (sort) => query({ sort }),
  });
  const title = element("h2", { tabindex: "-1" }, "Groups"),
    count = element("p", { class: "muted", role: "status" });
  const empty = element("p", { class: "empty" }),
    missing = element("p", { class: "muted", role: "status" });
  const filters = filterRow(route, query, () => update(), "part of a name", {
    state: ["State", STATES],
    findings: ["Findings", WRONG],
  });
  const update = () => {
    if (!state.overview) {
      empty.hidden = false;
      empty.textContent = "Waiting for the first response.";
      missing.hidden = true;
      table.node.hidden = filters.hidden = true;
      return;
    }
    const { groups, ready, problems, absent } = state.overview,
      { q = "", state: phase = "", findings = "" } = route.query;
    const shown = groups.filter(
      (g) =>
        matches(g.group, q) &&
        (!phase || phaseOf(g) === phase) &&
        (!findings || g.findings.critical || (findings === "warning" && g.findings.warning)),
    );
    missing.hidden = !absent.length;
    missing.textContent = `Kafka has neither members nor offsets of ${absent.join(", ")}. Check the name, if its members have run before.`;
    empty.hidden = groups.length > 0;
    table.node.hidden = filters.hidden = !groups.length;
    empty.textContent = ready
      ? "There is no group yet. One appears here when its first member joins."
      : problems.length
        ? "No data yet."
        : "Waiting for the first response.";
    table.show(shown);
    const members = shown.reduce((sum, g) => sum + g.members, 0),
      partitions = shown.reduce((sum, g) => sum + g.partitions, 0);
    count.textContent = groups.length
      ? `${shown.length === groups.length ? plural(groups.length, "group") : `${shown.length} of ${plural(groups.length, "group")}`}, ${plural(members, "member")}, ${plural(partitions, "partition")}`
      : "";
  };
  return {
    node: element(
      "section",
      { class: "view", "data-from": "zookeeper" },
      element("div", { class: "title" }, title, count),
      filters,
      missing,
      empty,
      table.node,
    ),
    update,
    close: () => table.close(),
    title: () => "Groups",
  };
};
