// One group: the header that all its views share, and the summary.

import { groupActions } from "./act.js";
import { offers } from "./requests.js";
import { Chart, MARKS, timeline } from "./charts.js";
import { element, link, say } from "./dom.js";
import { findings } from "./findings.js";
import { age, number, rate, span, whole } from "./format.js";
import { imbalance } from "./load.js";
import { map } from "./map.js";
import { commands } from "./commands.js";
import { figures, owner, panel, phaseBadge, section, to } from "./parts.js";
import { cells, inKafka, knownNow, marks, now, source, state } from "./state.js";
import { Table } from "./table.js";

const TABS = [
  ["summary", "Summary"],
  ["partitions", "Partitions"],
  ["rebalances", "Rebalances"],
  ["plan", "Plan"],
];

// Name, state, changes and tabs
export const groupHead = (route) => {
  const phase = element("span", { id: "phase" }),
    strategy = element("span", { id: "strategy", class: "muted" });
  const acts = groupActions();
  const tabs = element(
    "nav",
    { class: "tabs", "aria-label": "Views of the group" },
    ...TABS.map(([view, words]) =>
      link(to(view), words, { "aria-current": route.view === view ? "page" : undefined, hidden: view === "plan" }),
    ),
  );
  const planning = tabs.lastElementChild; // for operators: a plan costs the servers a little
  const inner = route.item !== null;
  const node = element(
    "div",
    { class: "head", "data-from": "zookeeper" },
    element(
      "div",
      { class: "title" },
      element(inner ? "p" : "h2", { id: "name", class: "name", tabindex: "-1" }, route.group),
      phase,
      strategy,
      element("span", { class: "spacer" }),
      acts.node,
    ),
    tabs,
  );
  const update = () => {
    acts.update();
    planning.hidden = !offers("plan");
    if (!state.group) return;
    const group = state.group,
      current = knownNow(source());
    // without that cluster the current phase is unknown
    const words = group.paused
      ? `paused${group.members.length ? `, still running: ${group.members.length}` : ""}`
      : group.phase;
    const shown = phaseBadge(group, current);
    shown.textContent =
      current || !state.connected ? words : `${words} when ${inKafka() ? "Kafka" : "ZooKeeper"} last responded`;
    if (phase.textContent !== shown.textContent || phase.firstChild?.className !== shown.className)
      phase.replaceChildren(shown);
    say(strategy, group.strategy ? `${inKafka() ? "assignor" : "allocator function"} ${group.strategy}` : "");
  };
  return { node, update };
};

// a number with a bar: its share of the largest in the column, which `scale` sets
const measured = (key, value, words) => {
  const node = element("span", { class: "measured" }, words, element("i", { class: key, "aria-hidden": "true" }));
  node.style.setProperty("--value", value ?? 0);
  return node;
};
const measure = (key, head, width, value, words, hint) => ({
  key,
  head,
  width,
  hint,
  numeric: true,
  value,
  text: (m) => words(value(m)),
  cell: (m) => measured(key, value(m), words(value(m))),
});
const MEASURES = { partitions: (m) => m.partitions, lag: lagOfMember, load: (m) => state.loads?.members[m.id] ?? null };
const scale = (node) => {
  for (const [key, value] of Object.entries(MEASURES))
    node.style.setProperty(`--most-${key}`, Math.max(1e-9, ...state.group.members.map((each) => value(each) ?? 0)));
};
const MEMBERS = [
  {
    key: "member",
    head: "member",
    width: 175,
    grow: true,
    value: (m) => m.name,
    text: (m) => m.name,
    cell: (m) => owner(m.id),
  },
  { key: "notes", head: "notes", width: 90, grow: true, wrap: true, text: notes },
  measure("partitions", "partitions", 90, MEASURES.partitions, whole),
  measure("lag", "lag", 62, MEASURES.lag, number),
];
const WITH_LOAD = [...MEMBERS, measure("load", "load", 62, MEASURES.load, number, "the load that the member reports")];
function lagOfMember(member) {
  return state.lag ? (state.lag.members[member.id] ?? null) : null;
}
// what commands of operators keep from the member
const MARKS_OF = { cordon: "cordoned", evacuate: "evacuated" };
function commanded(member) {
  const called = [member.id, member.name, member.client_id, member.name.split("@")[0]];
  return [
    ...new Set(
      state.commands
        .filter(
          (command) =>
            command.kind in MARKS_OF &&
            ["kept", "waiting", "done"].includes(command.state) &&
            called.includes(command.arguments.member),
        )
        .map((command) => MARKS_OF[command.kind]),
    ),
  ];
}
export function notes(member) {
  return [
    member.gone && "its znode is deleted, its claim exists",
    member.refused && "refused",
    member.releasing && `releases ${member.releasing}`,
    ...commanded(member),
    member.id === state.group.leader && "leads",
    member.rack && `rack ${member.rack}`,
    member.weight > 0 && member.weight !== 1 && `weight ${member.weight}`,
  ]
    .filter(Boolean)
    .join(", ");
}

export const groupFigures = (group) => {
  const all = cells(),
    moving = all.filter((cell) => cell.to !== null).length,
    none = all.filter((cell) => cell.unowned && cell.to === null).length;
  const line = state.overview?.groups.find((each) => each.group === group.group) ?? group;
  return figures([
    !inKafka() && ["generation", whole(group.generation)],
    // the list of members is empty also if they are unknown
    ["members", whole(line === group ? group.members.length : line.members)],
    ["partitions", whole(group.partitions)],
    ["moving", whole(moving)],
    ["unowned", whole(group.unowned === null ? null : none), none > 0],
    ["lag", number(state.lag ? state.lag.lag : group.lag)],
    ["behind", age(line.lag_s, line.lag_least_s)],
    ["written", rate(line.produced)],
    ["committed", rate(line.consumed)],
  ]);
};

const RANGES = [
  [1, "1 hour"],
  [6, "6 hours"],
  [24, "1 day"],
  [168, "7 days"],
  [720, "30 days"],
];
const LEGEND = [
  ["fault", "a member crashed"],
  ["command", "a change by a user"],
  ["deployment", "a deployment"],
  ["outage", "a cluster did not respond"],
].map(([kind, words]) => element("span", {}, element("b", { class: `mark ${kind}` }, MARKS[kind]), words));

export const summary = (route, query) => {
  const commanded = commands(),
    uneven = element("div");
  const found = findings(route.group),
    grids = map(() => state.topics, query);
  const numbers = element("div", { id: "figures" });
  const members = new Table({
    id: "members",
    label: "Members",
    columns: MEMBERS,
    key: (m) => m.id,
    empty: "No members.",
  });
  let held = null;
  const light = (id) => {
    if (state.only !== id) {
      state.only = id;
      grids.draw();
    }
  };
  members.node.addEventListener("pointerover", (event) => light(event.target.closest("tbody tr")?.dataset.key ?? held));
  members.node.addEventListener("pointerleave", () => light(held));
  members.node.addEventListener("focusin", (event) => {
    held = event.target.closest("tbody tr")?.dataset.key ?? null;
    light(held);
  });
  members.node.addEventListener("focusout", () => {
    held = null;
    light(null);
  });
  const charts = [
    new Chart("Lag", [{ key: "lag", label: "records", kind: "a" }]),
    new Chart("Behind", [{ key: "lag_s", label: "oldest record", kind: "a" }], "", span),
    new Chart(
      "Throughput",
      [
        { key: "consumed", label: "committed", kind: "a" },
        { key: "produced", label: "written", kind: "b" },
      ],
      "/s",
    ),
    new Chart("Commits", [{ key: "commits", label: "partitions", kind: "a" }], "/s"),
  ];
  for (const part of [found, commanded]) part.node.dataset.from = "zookeeper"; // grey while the cluster does not respond
  const strip = element("div", { id: "timeline" }),
    none = element("p", { class: "muted" }),
    legend = element("p", { class: "legend" }, ...LEGEND),
    all = link(to("rebalances"), "All rebalances");
  const drawings = element(
      "div",
      { id: "charts", class: "charts", "data-from": "kafka" },
      ...charts.map((chart) => chart.figure),
    ),
    unmeasured = element("p", { class: "muted" }, "No measurement yet.");
  // the stream has the last hour; longer periods come from the history file
  let range = RANGES.find(([hours]) => String(hours) === route.query.hours)?.[0] ?? 1,
    past = null;
  const buttons = element(
    "div",
    { class: "range inline", role: "group", "aria-label": "Time" },
    ...RANGES.map(([hours, words]) => {
      const node = element(
        "button",
        { type: "button", "aria-pressed": String(hours === range), "data-hours": hours },
        words,
      );
      node.addEventListener("click", () => {
        range = hours;
        query({ hours: hours === 1 ? "" : hours });
        for (const each of buttons.children) each.setAttribute("aria-pressed", String(each === node));
        loadPast();
      });
      return node;
    }),
  );
  const loadPast = async () => {
    past = null;
    if (range > 1) {
      try {
        const response = await fetch(
          `api/groups/${encodeURIComponent(route.group)}/history?from=${(now() - 3600 * range).toFixed(0)}`,
        );
        if (response.ok) past = await response.json();
      } catch {
        /* the head of the page says that the server is away */
      }
    }
    update("series");
  };
  const body = element(
    "div",
    { class: "body" },
    element("section", { "data-from": "kafka", "aria-label": "Figures" }, numbers),
    found.node,
    element(
      "div",
      { class: "columns", "data-from": "zookeeper" },
      panel("Owners", [grids.chooser], grids.node),
      panel("Members", [members.nothing, members.sorters], uneven, members.node),
    ),
    commanded.node,
    panel("Rebalances", [none, element("span", { class: "spacer" }), buttons, all], strip, legend),
    panel("Over time", [unmeasured], drawings),
  );
  const shown = () => past ?? { points: state.points, rebalances: state.rebalances, events: state.events };
  const history = () => {
    const { points, rebalances, events } = shown(),
      since = past
        ? now() - 3600 * range
        : Math.max(now() - 3600, Math.min(points[0]?.at ?? opened, ...rebalances.map((each) => each.began)));
    const marked = marks(events, rebalances).filter((each) => each.at >= since);
    strip.hidden = legend.hidden = !rebalances.length && !marked.length;
    none.hidden = rebalances.length > 0;
    all.hidden = !rebalances.length;
    timeline(
      strip,
      rebalances.filter((each) => each.began >= since),
      since,
      now(),
      (each) => to("rebalance", each.id),
      marked,
    );
    say(none, past ? "None in this time." : "None that this server knows.");
  };
  const opened = now();
  const drawCharts = () => {
    drawings.hidden = !shown().points.length;
    unmeasured.hidden = !drawings.hidden;
    for (const chart of charts)
      chart.show(
        shown().points,
        shown().rebalances.map((each) => each.began),
      );
  };
  const update = (kind) => {
    if (!state.group) return;
    if (["group", "lag", "overview", "all"].includes(kind)) numbers.replaceChildren(groupFigures(state.group));
    if (["group", "lag", "loads", "commands", "all"].includes(kind)) {
      members.use(state.loads ? WITH_LOAD : MEMBERS);
      scale(members.node);
      members.show(state.group.members);
      grids.update();
      uneven.replaceChildren(imbalance());
    }
    if (["findings", "all"].includes(kind)) found.update(state.findings);
    if (["commands", "all"].includes(kind)) commanded.update();
    if (["rebalances", "series", "events", "resize", "all"].includes(kind)) {
      history();
      drawCharts();
    }
    if (kind === "resize") {
      grids.draw();
    }
  };
  if (range > 1) loadPast();
  const ticking = setInterval(() => {
    if (state.group && !document.hidden) {
      history();
      uneven.replaceChildren(imbalance());
    }
  }, 5000);
  return {
    node: body,
    update,
    close: () => {
      members.close();
      commanded.close();
      clearInterval(ticking);
      state.only = null;
    },
    title: () => `${state.group?.problems ? "(!) " : ""}${route.group}`,
  };
};
