// The clusters: links to the views without a group, and the lists of topics and brokers.

import { offers } from "./requests.js";
import { element, link } from "./dom.js";
import { number, plural, whole } from "./format.js";
import { filterRow } from "./parts.js";
import { offered } from "./records.js";
import { build } from "./route.js";
import { matches } from "./rows.js";
import { now, state } from "./state.js";
import { Table } from "./table.js";

const VIEWS = [
  ["overview", "Groups", () => true],
  ["topics", "Topics", () => true],
  ["brokers", "Brokers", () => true],
  ["records", "Records", () => offered()],
  ["letters", "Dead letters", () => offers("deadletters")],
  [
    "audit",
    "Changes",
    () => state.hello?.role === "operator" || (state.hello?.needs_token && state.hello.actions.length > 0),
  ],
];
export const clusterHead = (route) => {
  const tabs = VIEWS.map(([view, words, open]) => [
    link(build({ view }), words, { "aria-current": route.view === view ? "page" : undefined, hidden: true }),
    open,
  ]);
  return {
    node: element("nav", { class: "tabs", "aria-label": "Views of the clusters" }, ...tabs.map(([node]) => node)),
    update: () => {
      for (const [node, open] of tabs) node.hidden = !open();
    },
  };
};

const EVERY_S = 5; // between two reads of a list, as often as the server polls Kafka
const GROUPS = 5; // groups of a topic that the table names
const unknown = (value, words = whole) => (value === null ? "unknown" : words(value));

const TOPICS = [
  {
    key: "topic",
    head: "topic",
    width: 180,
    grow: true,
    text: (t) => t.topic,
    cell: (t) =>
      offered() ? link(build({ view: "records", item: t.topic }), t.topic, { title: "Show its records" }) : t.topic,
  },
  {
    key: "partitions",
    head: "partitions",
    width: 88,
    numeric: true,
    value: (t) => t.partitions,
    text: (t) => whole(t.partitions),
  },
  {
    key: "replicas",
    head: "replicas",
    width: 80,
    numeric: true,
    value: (t) => t.replicas,
    text: (t) => unknown(t.replicas),
    hint: "copies of each partition; the least, if they differ",
  },
  {
    key: "leaderless",
    head: "no leader",
    width: 90,
    numeric: true,
    value: (t) => t.leaderless,
    text: (t) => unknown(t.leaderless),
    cell: (t) => (t.leaderless ? element("b", { class: "wrong" }, whole(t.leaderless)) : unknown(t.leaderless)),
    hint: "partitions without a leader, which cannot be read or written",
  },
  {
    key: "records",
    head: "records",
    width: 80,
    numeric: true,
    value: (t) => t.records,
    text: (t) => unknown(t.records, number),
    hint: "in the log, from its first to its last offset",
  },
  {
    key: "lag",
    head: "lag",
    width: 75,
    numeric: true,
    value: (t) => t.lag,
    text: (t) => (t.groups.length ? unknown(t.lag, number) : "no group"),
    hint: "the sum over its groups",
  },
  {
    key: "groups",
    head: "groups",
    width: 200,
    grow: true,
    largest: true,
    value: (t) => t.groups.length,
    text: (t) => t.groups.join(" ") || "none",
    cell: (t) => [
      ...t.groups
        .slice(0, GROUPS)
        .flatMap((group, at) => [at ? ", " : "", link(build({ view: "topic", group, item: t.topic }), group)]),
      t.groups.length > GROUPS ? ` and ${whole(t.groups.length - GROUPS)} more` : t.groups.length ? "" : "none",
    ],
  },
];
const BROKERS = [
  { key: "id", head: "broker", width: 80, value: (b) => b.id, text: (b) => String(b.id) },
  {
    key: "address",
    head: "address",
    width: 180,
    grow: true,
    text: (b) => (b.host === null ? "unknown" : `${b.host}:${b.port}`),
  },
  {
    key: "state",
    head: "state",
    width: 150,
    text: (b) => (b.host === null ? "not in the cluster" : b.controller ? "controller" : "in the cluster"),
  },
  { key: "rack", head: "rack", width: 90, text: (b) => b.rack ?? "none" },
  {
    key: "leads",
    head: "leads",
    width: 80,
    numeric: true,
    value: (b) => b.leads,
    text: (b) => whole(b.leads),
    hint: "partitions that it leads",
  },
  {
    key: "replicas",
    head: "replicas",
    width: 80,
    numeric: true,
    value: (b) => b.replicas,
    text: (b) => whole(b.replicas),
    hint: "partitions of which it should have a copy",
  },
];

// A list that the server has at `api/{what}`; `name(row)` names a row, `about(response)` returns what the list lacks
const list = (what, title, columns, name, about) => (route, query) => {
  let found = null,
    read = 0,
    loading = false;
  const table = new Table({
    id: what,
    label: title,
    columns,
    key: name,
    sort: route.query.sort ?? columns[0].key,
    empty: `No ${what} match.`,
    onsort: (sort) => query({ sort }),
  });
  const count = element("p", { class: "muted", role: "status" }),
    note = element("p", { class: "muted", hidden: true });
  const filters = filterRow(route, query, () => show(), "part of a name");
  const show = () => {
    table.show(
      found[what].filter((row) => matches(columns.map((column) => column.text(row)).join(" "), route.query.q ?? "")),
    );
    table.count(count, found[what].length, what);
    note.textContent = about(found);
    note.hidden = !note.textContent;
  };
  const load = async () => {
    if (!state.hello || loading || now() - read < EVERY_S) return;
    loading = true;
    try {
      const response = await fetch(`api/${what}`);
      if (response.ok) {
        found = await response.json();
        show();
      }
      read = now();
    } catch {
      /* the head of the page says that the server is away */
    } finally {
      loading = false;
    }
  };
  return {
    node: element(
      "section",
      { class: "view", "data-from": "kafka" },
      element("div", { class: "title" }, element("h2", { tabindex: "-1" }, title), count),
      note,
      filters,
      table.node,
    ),
    update: () => {
      if (found) show();
      load();
    },
    close: () => table.close(),
    title: () => title,
  };
};
const WITHOUT = "This server was started without --brokers, or Kafka has not responded yet.";
export const topics = list(
  "topics",
  "Topics",
  TOPICS,
  (t) => t.topic,
  (found) => (found.complete ? "" : `${WITHOUT} These are the topics of the groups.`),
);
export const brokers = list(
  "brokers",
  "Brokers",
  BROKERS,
  (b) => b.id,
  (found) => (found.complete ? "" : WITHOUT),
);
