// Tables of partitions with their offsets: of a group, a topic or a member.

import { capital, offers, opener } from "./requests.js";
import { badge, element, link } from "./dom.js";
import { ago, number, plural, rate, span, whole } from "./format.js";
import { KIND, inForce, leads, commandsOn, short } from "./commands.js";
import { KINDS, openInForce, openPartitionCommand, commandsChanged } from "./partition_commands.js";
import { filterRow, owner, to } from "./parts.js";
import { matches } from "./rows.js";
import { called, cells, nameOf, now, partitionRows, state } from "./state.js";
import { Table } from "./table.js";

const COLUMNS = [
  {
    key: "partition",
    head: "partition",
    width: 130,
    grow: true,
    value: (r) => `${r.topic}:${r.number}`,
    text: (r) => `${r.topic}:${r.number}`,
    cell: (r) => link(to("topic", r.topic, { q: `:${r.number}` }), `${r.topic}:${r.number}`),
  },
  {
    key: "owner",
    head: "owner",
    width: 150,
    grow: true,
    value: (r) => (r.owner === null ? null : nameOf(r.owner)),
    text: (r) =>
      `${r.owner === null ? "no owner" : called(r.owner)}${r.cell.to === null ? "" : ` → ${called(r.cell.to)}`}`,
    cell: (r) =>
      r.cell.to === null ? owner(r.owner) : element("span", { class: "pair" }, owner(r.owner), "→", owner(r.cell.to)),
  },
  {
    key: "lag",
    head: "lag",
    width: 75,
    numeric: true,
    value: (r) => r.lag,
    text: (r) => number(r.lag),
    hint: "records between the committed offset and the log end",
  },
  {
    key: "age",
    head: "behind",
    width: 75,
    numeric: true,
    value: (r) => r.lag_s,
    text: (r) => span(r.lag_s),
    hint: "for how long the next record has waited",
  },
  {
    key: "rate",
    head: "rate",
    width: 70,
    numeric: true,
    value: (r) => r.rate,
    text: (r) => rate(r.rate),
    hint: "committed records per second over the last minute",
  },
  {
    key: "committed",
    head: "committed",
    width: 100,
    numeric: true,
    value: (r) => r.committed,
    text: (r) => whole(r.committed),
  },
  { key: "end", head: "log end", width: 92, numeric: true, value: (r) => r.end, text: (r) => whole(r.end) },
  { key: "start", head: "log start", width: 84, numeric: true, value: (r) => r.start, text: (r) => whole(r.start) },
  {
    key: "commit",
    head: "last commit",
    width: 108,
    numeric: true,
    value: (r) => r.committed_at,
    text: (r) => (r.committed_at === null ? "none seen" : ago(r.committed_at, now())),
    hint: "when the committed offset was seen to change last",
  },
  {
    key: "fence",
    head: "fence",
    width: 130,
    numeric: true,
    value: (r) => r.fence,
    text: (r) => (r.fence === null ? "unknown" : `${r.fence_exact ? "" : "at most "}${whole(r.fence)}`),
    hint: "the fencing token of the owner: a sink refuses writes with a smaller one",
  },
];
// the operator commands about the partitions, each a button that shows them, and a button for each kind of command
const kinds = () => (offers("commands/put") ? KINDS.filter((kind) => kind !== "pin" || leads()) : []);
const acts = (kinds, cells, title, look) =>
  kinds.map((kind) =>
    opener(`${capital(kind)}…`, () => openPartitionCommand(kind, cells()), {
      class: look,
      "aria-label": `${capital(kind)} ${title}`,
    }),
  );
const standing = (row) => commandsOn(row.topic, row.number).filter(inForce);
const ROW = ["pause", "seek", "pin"];
const COMMANDS = {
  key: "commands",
  head: "commands",
  width: 290,
  value: (r) => commandsOn(r.topic, r.number).length || null,
  text: (r) =>
    `${commandsOn(r.topic, r.number)
      .map((each) => `${short(each)} ${each.state}`)
      .join(", ")} ${kinds().join(" ")}`,
  cell: (r) => {
    const known = commandsOn(r.topic, r.number),
      title = `${r.topic}:${r.number}`;
    const marks = known.filter(inForce).map((each) => badge(short(each), KIND[each.state] === "bad" ? "bad" : "busy")),
      some = kinds();
    const look =
      known.length && some.length
        ? [
            opener(marks.length ? marks : "done", () => openInForce([r.cell]), {
              class: "quiet",
              "aria-label": `Commands about ${title}`,
            }),
          ]
        : marks;
    return [
      ...look,
      ...acts(
        some.filter((kind) => ROW.includes(kind) && !known.some((each) => each.kind === kind && inForce(each))),
        () => [r.cell],
        title,
        "quiet",
      ),
    ];
  },
};
const SHOW = [
  ["", "all"],
  ["lagging", "with lag"],
  ["unowned", "without an owner"],
  ["moving", "moving"],
  ["moved", "moved last"],
  ["unknown", "lag unknown"],
  ["retired", "not subscribed"],
  ["commanded", "with commands"],
];
const KEPT = {
  lagging: (r) => r.lag > 0,
  unowned: (r) => r.cell.unowned,
  moving: (r) => r.cell.to !== null,
  moved: (r) => r.cell.moved,
  unknown: (r) => r.lag === null && !r.cell.retired,
  retired: (r) => r.cell.retired,
  commanded: (r) => standing(r).length > 0,
};

// `chosen(cell)` returns whether the table shows a partition
export const partitionTable = (route, query, chosen, label, id = "partitions") => {
  const table = new Table({
    id,
    label,
    columns: COLUMNS,
    key: (r) => `${r.topic}:${r.number}`,
    sort: route.query.sort ?? "",
    empty: "No partition matches.",
    onsort: (sort) => query({ sort }),
  });
  const count = element("p", { class: "muted", role: "status" });
  const chosenCells = () => table.rows.map((row) => row.cell),
    about = element("div", { class: "acts", role: "group", hidden: true });
  const filters = filterRow(route, query, () => update(), "topic:number or owner", { show: ["Show", SHOW] });
  filters.append(count, about);
  const update = () => {
    if (!state.group) return;
    const columns =
      offers("commands/put") || state.commands.some((each) => each.arguments.partitions)
        ? [...COLUMNS.slice(0, 2), COMMANDS, ...COLUMNS.slice(2)]
        : COLUMNS;
    if (table.columns.length !== columns.length) {
      table.columns = columns;
      if (table.shown) table.layout();
    }
    const rows = partitionRows(cells().filter(chosen)),
      { q = "", show = "" } = route.query;
    table.show(
      rows.filter(
        (r) =>
          (!show || KEPT[show]?.(r)) &&
          (!q || matches(`${r.topic}:${r.number} ${r.owner === null ? "" : nameOf(r.owner)}`, q)),
      ),
    );
    table.count(count, rows.length, "partitions");
    about.hidden = !kinds().length || !table.rows.length;
    const these = table.rows.length === 1 ? "this partition" : `these ${plural(table.rows.length, "partition")}`;
    about.setAttribute("aria-label", `Commands about ${these}`);
    if (about.childElementCount !== kinds().length + 1)
      about.replaceChildren(
        ...acts(kinds(), chosenCells, "the partitions below"),
        opener("In force…", () => openInForce(chosenCells())),
      );
    commandsChanged();
  };
  return { node: element("div", { "data-from": "kafka" }, filters, table.node), update, close: () => table.close() };
};

export const partitions = (route, query) => {
  const table = partitionTable(route, query, () => true, "Partitions");
  return {
    node: element("section", { class: "view", "aria-label": "Partitions" }, table.node),
    needs: "offsets",
    update: (kind) => {
      if (kind !== "findings" && kind !== "series" && kind !== "overview") table.update();
    },
    close: table.close,
    title: () => `Partitions of ${route.group}`,
  };
};
