// One group: the head that all its views share, and the summary.

import { Chart, timeline } from "./charts.js";
import { element, link, say } from "./dom.js";
import { findings } from "./findings.js";
import { age, number, rate, span, whole } from "./format.js";
import { map } from "./map.js";
import { figures, phaseBadge, section, swatch, to } from "./parts.js";
import { cells, knownNow, now, state } from "./state.js";
import { Table } from "./table.js";

const TABS = [["summary", "Summary"], ["partitions", "Partitions"], ["rebalances", "Rebalances"]];

// Name, state and tabs; `act` opens the dialog of changes
export const groupHead = (route, act) => {
  const phase = element("span", { id: "phase" }), strategy = element("span", { id: "strategy", class: "muted" });
  const change = element("button", { id: "act", type: "button", hidden: true }, "Change…");
  change.addEventListener("click", act);
  const tabs = element("nav", { class: "tabs", "aria-label": "Views of the group" }, ...TABS.map(([view, words]) => link(to(view), words, { "aria-current": route.view === view ? "page" : undefined })));
  const inner = route.item !== null;
  const node = element("div", { class: "head", "data-from": "zookeeper" },
    element("div", { class: "title" }, element(inner ? "p" : "h2", { id: "name", class: "name", tabindex: "-1" }, route.group), phase, strategy, element("span", { class: "spacer" }), change), tabs);
  const update = () => {
    change.hidden = state.overview?.read_only !== false;
    if (!state.group) return;
    const group = state.group, current = knownNow("zookeeper");
    // without ZooKeeper the current phase is unknown
    const words = group.paused ? `paused${group.members.length ? `, going on: ${group.members.length}` : ""}` : group.phase;
    const shown = phaseBadge(group, current);
    shown.textContent = current || !state.connected ? words : `${words} when ZooKeeper last answered`;
    if (phase.textContent !== shown.textContent || phase.firstChild?.className !== shown.className) phase.replaceChildren(shown);
    say(strategy, group.strategy ? `allocator function ${group.strategy}` : "");
  };
  return { node, update };
};

const MEMBERS = [
  { key: "member", head: "member", width: 220, value: (m) => m.name, text: (m) => `${m.name} ${notes(m)}`, cell: (m) => element("span", { class: "owner" }, swatch(m.id), element("span", {}, link(to("member", m.id), m.name, { class: "member" }), ...(notes(m) ? [element("small", {}, notes(m))] : []))) },
  { key: "host", head: "host", width: 90, rank: 1, text: (m) => m.host ?? "unknown" },
  { key: "partitions", head: "partitions", width: 90, rank: 3, numeric: true, value: (m) => m.partitions, text: (m) => whole(m.partitions) },
  { key: "lag", head: "lag", width: 75, rank: 2, numeric: true, value: lagOfMember, text: (m) => number(lagOfMember(m)) },
];
function lagOfMember(member) { return state.lag ? state.lag.members[member.id] ?? null : null; }
export const notes = (member) => [
  member.id === state.group.leader && "leads", member.gone && "its znode is deleted, its claim exists",
  member.refused && "refused", member.releasing && `releases ${member.releasing}`, member.rack && `rack ${member.rack}`, member.weight > 0 && member.weight !== 1 && `weight ${member.weight}`,
].filter(Boolean).join(", ");

export const groupFigures = (group) => {
  const all = cells(), moving = all.filter((cell) => cell.to !== null).length, none = all.filter((cell) => cell.unowned && cell.to === null).length;
  const line = state.overview?.groups.find((each) => each.group === group.group) ?? group;
  return figures([
    ["generation", whole(group.generation)], ["members", whole(group.members.length)], ["partitions", whole(group.partitions)], ["moving", whole(moving)], ["unowned", whole(none), none > 0],
    ["lag", number(state.lag ? state.lag.lag : group.lag)], ["behind", age(line.lag_s, line.lag_least_s)], ["written", rate(line.produced)], ["committed", rate(line.consumed)],
  ]);
};

export const summary = (route, query) => {
  const found = findings(route.group), grids = map(() => state.topics, query);
  const numbers = element("div", { id: "figures" });
  const members = new Table({ id: "members", label: "Members", columns: MEMBERS, key: (m) => m.id, tall: true, empty: "No members." });
  let held = null;
  const light = (id) => { if (state.only !== id) { state.only = id; grids.draw(); } };
  members.node.addEventListener("pointerover", (event) => light(event.target.closest("tbody tr")?.dataset.key ?? held));
  members.node.addEventListener("pointerleave", () => light(held));
  members.node.addEventListener("focusin", (event) => { held = event.target.closest("tbody tr")?.dataset.key ?? null; light(held); });
  members.node.addEventListener("focusout", () => { held = null; light(null); });
  const charts = [
    new Chart("Lag", [{ key: "lag", label: "records", kind: "a" }]),
    new Chart("Behind", [{ key: "lag_s", label: "oldest record", kind: "a" }], "", span),
    new Chart("Throughput", [{ key: "consumed", label: "committed", kind: "a" }, { key: "produced", label: "written", kind: "b" }], "/s"),
    new Chart("Commits", [{ key: "commits", label: "partitions", kind: "a" }], "/s"),
  ];
  const strip = element("div", { id: "timeline" }), none = element("p", { class: "muted" });
  const body = element("div", { class: "body" },
    element("section", { "data-from": "kafka", "aria-label": "Figures" }, numbers), found.node,
    element("div", { class: "columns" },
      section("Owners", grids.node),
      section("Members", members.node)),
    section("Rebalances", strip, none, link(to("rebalances"), "All rebalances")),
    section("Over time", element("div", { id: "charts", class: "charts", "data-from": "kafka" }, ...charts.map((chart) => chart.figure))));
  const history = () => {
    timeline(strip, state.rebalances, state.points[0]?.at ?? opened, now(), (each) => to("rebalance", each.id));
    none.textContent = state.rebalances.length ? "" : "None since this server watches.";
  };
  const opened = now();
  const drawCharts = () => { for (const chart of charts) chart.show(state.points, state.rebalances.map((each) => each.began)); };
  const update = (kind) => {
    if (!state.group) return;
    if (["group", "lag", "overview", "all"].includes(kind)) numbers.replaceChildren(groupFigures(state.group));
    if (["group", "lag", "all"].includes(kind)) { members.show(state.group.members); grids.update(); }
    if (["findings", "all"].includes(kind)) found.update(state.findings);
    if (["rebalances", "series", "resize", "all"].includes(kind)) { history(); drawCharts(); }
    if (kind === "resize") grids.draw();
  };
  const ticking = setInterval(() => { if (state.group && !document.hidden) history(); }, 5000);
  return { node: body, update, close: () => { members.close(); clearInterval(ticking); state.only = null; }, title: () => `${state.group?.problems ? "(!) " : ""}${route.group}` };
};
