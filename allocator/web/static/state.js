// The state of the page: the stream of events writes it, the views read it.

import { Looks } from "./draw.js";
import { expand } from "./format.js";

export const KEPT = 720; // points of the charts
export const looks = new Looks();
export const state = { route: null, overview: null, skew: 0, hello: null, connected: false, lost: null, heard: null };

// Forgets one group before another is shown
export const clear = () =>
  Object.assign(state, {
    group: null,
    topics: [],
    members: new Map(),
    departed: {},
    lag: null,
    loads: null,
    rebalances: [],
    events: [],
    commands: [],
    findings: null,
    points: [],
    offsets: null,
    only: null,
    held: null,
    cursor: null,
    missing: false,
  });
clear();

// The time by the clock of the server
export const now = () => Date.now() / 1000 + state.skew;
export const cluster = (name) => state.overview?.clusters.find((each) => each.cluster === name);
// Whether the shown group has its members in Kafka's coordinator
export const inKafka = () => state.group?.protocol === "kafka";
// The cluster that reports the owners of the partitions
export const source = () => (inKafka() || (state.overview && !cluster("zookeeper")) ? "kafka" : "zookeeper");
export const knownNow = (name) =>
  state.connected && (name === "zookeeper" ? state.overview?.ready === true : cluster(name)?.ok === true);

export const learn = (group) => {
  state.group = group;
  const ids = group.members.map((member) => member.id);
  looks.keep(group.members);
  state.members = new Map(group.members.map((member) => [member.id, member]));
  state.departed = group.departed;
  state.topics = group.topics.map((topic) => {
    const unowned = new Set(topic.unowned);
    return {
      name: topic.topic,
      cells: expand(topic.partitions).map((n, at) => ({
        topic: topic.topic,
        number: n,
        at,
        owner: topic.owners[at] < 0 ? null : ids[topic.owners[at]],
        to: n in topic.to ? ids[topic.to[n]] : null,
        moved: n in topic.moved,
        from: topic.moved[n] ?? null,
        unowned: unowned.has(n),
        retired: topic.retired,
      })),
    };
  });
};
export const cells = () => state.topics.flatMap((topic) => topic.cells);
export const lagOf = (cell) => state.lag?.topics[cell.topic]?.[cell.at] ?? null;
export const ageOf = (cell) => state.lag?.ages[cell.topic]?.[cell.at] ?? null;
export const nameOf = (id) => state.members.get(id)?.name ?? state.departed[id] ?? id;
export const called = (id) => (state.members.has(id) ? `${looks.of(id).tag} ${nameOf(id)}` : nameOf(id));

// Marks for the timeline: changes and deployments, outages of clusters, and crashed members
export const marks = (events = state.events, rebalances = state.rebalances) => [
  ...events.map((each) => ({ at: each.at, kind: each.kind, text: `${each.text}${each.who ? ` (${each.who})` : ""}` })),
  // operator commands from elsewhere; those that this page added are events already
  ...state.commands
    .filter((command) => !events.some((each) => each.kind === "command" && Math.abs(each.at - command.at) < 5))
    .map((command) => ({ at: command.at, kind: "command", text: `${command.kind} (${command.who})` })),
  ...rebalances
    .filter((each) => each.why.some((why) => why.startsWith("crashed")))
    .map((each) => ({ at: each.began, kind: "fault", text: each.why.join("; ") })),
];

const COLUMNS = ["committed", "start", "end", "lag", "lag_s", "rate", "committed_at", "fence", "fence_exact"];
// One row for each partition: the cell and its offsets, which are undefined until they are loaded
export const partitionRows = (cells) =>
  cells.map((cell) => {
    const columns = state.offsets?.topics[cell.topic],
      row = { cell, topic: cell.topic, number: cell.number, owner: cell.owner };
    for (const name of COLUMNS) row[name] = columns?.[name][cell.at] ?? null;
    return row;
  });
