// The rebalances of a group, and one of them as a picture.

import { timeline } from "./charts.js";
import { badge, element, link } from "./dom.js";
import { flow } from "./flow.js";
import { moment, plural, span, whole } from "./format.js";
import { figures, filterRow, section, to, WHEN } from "./parts.js";
import { matches } from "./rows.js";
import { looks, marks, now, state } from "./state.js";
import { Table } from "./table.js";

const took = (each) => (each.ended === null ? "in progress" : each.took_s === null ? "not seen" : span(each.took_s));
const stood = (each) =>
  each.longest_s === null || each.longest_s === undefined ? (each.moved ? "not seen" : "none") : span(each.longest_s);
// usually all moves are from or to one member, which joined or left: name it once
const ways = (between) => {
  const all = (end) => between.length > 1 && between.every((one) => one[end] === between[0][end]);
  const called = (name) => name ?? "no owner",
    some = between.slice(0, 6),
    more = between.length > 6 ? ", …" : "";
  const each = (end) => some.map((one) => `${called(one[end])} (${one.partitions})`).join(", ") + more;
  if (all("from")) return `${called(between[0].from)} → ${each("to")}`;
  if (all("to")) return `${each("from")} → ${called(between[0].to)}`;
  return some.map((one) => `${called(one.from)} → ${called(one.to)} (${one.partitions})`).join(", ") + more;
};
const COLUMNS = [
  WHEN,
  {
    key: "generation",
    head: "generation",
    width: 102,
    numeric: true,
    value: (r) => r.generation,
    text: (r) => whole(r.generation),
  },
  {
    key: "took",
    head: "duration",
    width: 80,
    numeric: true,
    value: (r) => r.took_s,
    text: took,
    hint: "from the first event until the last claim",
  },
  {
    key: "stood",
    head: "standstill",
    width: 90,
    numeric: true,
    value: (r) => r.longest_s,
    text: stood,
    hint: "the longest time that a partition had no owner, counted from the fault, not from its discovery",
  },
  {
    key: "moved",
    head: "moved",
    width: 110,
    numeric: true,
    value: (r) => r.moved,
    text: (r) => `${whole(r.moved)} of ${whole(r.total)}`,
  },
  {
    key: "why",
    head: "why",
    width: 180,
    grow: true,
    text: (r) =>
      r.why.join("; ") +
      (r.superseded ? " (superseded by the next one)" : "") +
      (r.waited_for.length
        ? ` (waited ${r.waited_for.map((one) => `${span(one.s)} for ${one.member}`).join(", ")})`
        : ""),
  },
  { key: "ways", head: "from and to", width: 200, grow: true, text: (r) => ways(r.between) },
];

export const rebalances = (route, query) => {
  const table = new Table({
    id: "history",
    label: "Rebalances",
    columns: COLUMNS,
    key: (r) => r.id,
    sort: route.query.sort ?? "-when",
    empty: "None that this server knows.",
    onsort: (sort) => query({ sort }),
  });
  const strip = element("div", { id: "timeline" }),
    opened = now();
  const filters = filterRow(route, query, () => update("rebalances"), "reason or member");
  const update = (kind) => {
    if (kind === "lag" || kind === "findings" || kind === "overview") return;
    const q = route.query.q ?? "";
    table.show(
      q
        ? state.rebalances.filter((r) => matches(`${r.why.join(" ")} ${ways(r.between)} ${r.generation}`, q))
        : state.rebalances,
    );
    timeline(
      strip,
      state.rebalances,
      state.points[0]?.at ?? opened,
      now(),
      (each) => to("rebalance", each.id),
      marks(),
    );
  };
  return {
    node: element("section", { class: "view", "aria-label": "Rebalances" }, strip, filters, table.node),
    update,
    close: () => table.close(),
    title: () => `Rebalances of ${route.group}`,
  };
};

const MOVES = [
  {
    key: "partition",
    head: "partition",
    width: 130,
    grow: true,
    value: (r) => r.name,
    text: (r) => r.name,
    cell: (r) => link(to("topic", r.topic, { q: `:${r.number}` }), r.name),
  },
  { key: "from", head: "from", width: 150, grow: true, text: (r) => r.from },
  { key: "to", head: "to", width: 150, grow: true, text: (r) => r.to },
  {
    key: "stood",
    head: "standstill",
    width: 105,
    numeric: true,
    value: (r) => r.total,
    text: (r) => (r.total === null ? "unknown" : `${r.unnoticed ? "up to " : ""}${span(r.total)}`),
    hint: "from the fault until the new owner claimed it",
  },
  {
    key: "unnoticed",
    head: "unnoticed",
    width: 105,
    numeric: true,
    value: (r) => r.unnoticed,
    text: (r) => (r.unnoticed === null ? "0 s" : `up to ${span(r.unnoticed)}`),
    hint: "from the crash until ZooKeeper noticed it",
  },
  { key: "bar", head: "time", width: 100, text: (r) => `${r.share}`, cell: (r) => bar(r) },
];
const bar = (row) => {
  const node = element(
    "span",
    { class: "bar-line", "aria-hidden": "true" },
    element("i", { class: "unnoticed" }),
    element("i", { class: "stood" }),
  );
  node.children[0].style.width = `${100 * row.share * ((row.unnoticed ?? 0) / (row.total || 1))}%`;
  node.children[1].style.width = `${100 * row.share * ((row.stood ?? 0) / (row.total || 1))}%`;
  return node;
};
const middle = (values) => (values.length ? [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] : null);

export const rebalance = (route, query) => {
  const title = element("h2", { tabindex: "-1" }, "Rebalance"),
    lead = element("p"),
    numbers = element("div"),
    picture = element("div", { class: "flow" }),
    missing = element("p", { class: "empty", hidden: true });
  const table = new Table({
    id: "moves",
    label: "Moved partitions",
    columns: MOVES,
    key: (r) => r.name,
    sort: route.query.sort ?? "-stood",
    empty: "No partition moved.",
    onsort: (sort) => query({ sort }),
  });
  const inner = element(
    "div",
    { class: "body" },
    element("section", { "aria-label": "Figures" }, lead, numbers),
    section("Moves between members", picture),
    section(
      "Standstill of each partition",
      element(
        "p",
        { class: "muted" },
        "From the fault until the new owner claimed it. A crash is noticed when the session of the member ends; that time is the light part of the bar.",
      ),
      table.node,
    ),
  );
  let found = null,
    version = "",
    loading = false;
  const load = async () => {
    const entry = state.rebalances.find((each) => String(each.id) === route.item),
      mark = JSON.stringify(entry ?? null);
    if (loading || (found && mark === version)) return;
    loading = true;
    try {
      const response = await fetch(
          `api/groups/${encodeURIComponent(route.group)}/rebalances/${encodeURIComponent(route.item)}`,
        ),
        value = await response.json();
      if (!response.ok) {
        missing.textContent = value.error.message;
        missing.hidden = false;
        inner.hidden = true;
        return;
      }
      found = value;
      version = mark;
      draw();
    } catch {
      /* the head of the page says that the server is away */
    } finally {
      loading = false;
    }
  };
  const draw = () => {
    title.textContent = found.generation === null ? "Rebalance" : `Rebalance to generation ${found.generation}`;
    lead.replaceChildren(
      badge(
        found.ended === null ? "in progress" : found.superseded ? "superseded" : "done",
        found.ended === null ? "busy" : "quiet",
      ),
      ` ${moment(found.began)}: ${found.why.join("; ")}`,
    );
    const rows = found.topics.flatMap((topic) =>
      topic.partitions.map((number, at) => {
        const name = (index) => (index < 0 ? "no owner" : found.members[index].name),
          unnoticed = topic.unnoticed_s[at],
          stood = topic.stood_s[at];
        return {
          topic: topic.topic,
          number,
          name: `${topic.topic}:${number}`,
          from: name(topic.from[at]),
          to: name(topic.to[at]),
          stood,
          unnoticed,
          total: stood === null ? null : stood + (unnoticed ?? 0),
        };
      }),
    );
    const longest = Math.max(0.001, ...rows.map((row) => row.total ?? 0));
    for (const row of rows) row.share = (row.total ?? 0) / longest;
    const known = rows.map((row) => row.total).filter((value) => value !== null);
    numbers.replaceChildren(
      figures([
        ["moved", `${whole(found.moved)} of ${whole(found.total)}`],
        ["duration", took(found)],
        ["longest standstill", stood(found), found.longest_s > 30],
        ["median standstill", known.length ? span(middle(known)) : "not seen"],
        [
          "unnoticed",
          found.unnoticed_s === null ? "unknown" : found.unnoticed_s ? `up to ${span(found.unnoticed_s)}` : "0 s",
        ],
        ["allocator function", found.strategy || "unknown"],
      ]),
    );
    const pairs = new Map();
    for (const row of rows)
      pairs.set(`${row.from}\n${row.to}`, {
        from: row.from,
        to: row.to,
        partitions: (pairs.get(`${row.from}\n${row.to}`)?.partitions ?? 0) + 1,
      });
    const ids = new Map(found.members.map((each) => [each.name, each.id]));
    const look = (name) => (ids.has(name) && state.members.has(ids.get(name)) ? looks.of(ids.get(name)) : null);
    picture.replaceChildren(
      rows.length
        ? flow([...pairs.values()], Math.max(280, picture.clientWidth), look)
        : element(
            "p",
            { class: "muted" },
            `No partition moved: ${plural(found.total, "partition")} stayed where they were.`,
          ),
    );
    table.show(rows);
  };
  const update = (kind) => {
    if (kind === "resize" && found) draw();
    else if (["rebalances", "group", "all"].includes(kind)) load();
  };
  return {
    node: element("div", { class: "body" }, title, missing, inner),
    update,
    close: () => table.close(),
    title: () => `Rebalance of ${route.group}`,
  };
};
