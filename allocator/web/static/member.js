// One member, and one topic.

import { element, link } from "./dom.js";
import { age, ago, moment, number, rate, span, whole } from "./format.js";
import { openCommand } from "./act.js";
import { notes } from "./group.js";
import { leads } from "./commands.js";
import { capital, opener } from "./requests.js";
import { map } from "./map.js";
import { partitionTable } from "./partitions.js";
import { figures, owner, panel, section, swatch, WHEN } from "./parts.js";
import { offered } from "./records.js";
import { build } from "./route.js";
import { ageOf, cells, inKafka, lagOf, nameOf, now, partitionRows, state } from "./state.js";
import { Table } from "./table.js";

const sum = (values) => values.reduce((total, value) => (total === null || value === null ? null : total + value), 0);
const oldest = (ages) => (ages.includes(null) ? null : Math.max(0, ...ages));

const HISTORY = [
  WHEN,
  { key: "got", head: "got", width: 60, numeric: true, value: (r) => r.got, text: (r) => whole(r.got) },
  { key: "gave", head: "lost", width: 60, numeric: true, value: (r) => r.gave, text: (r) => whole(r.gave) },
  { key: "with", head: "from and to", width: 200, grow: true, text: (r) => r.with },
  { key: "why", head: "why", width: 200, grow: true, text: (r) => r.why },
];
// the partitions that a member got and lost in each rebalance that the page knows
const shares = (name) =>
  state.rebalances
    .map((each) => {
      const gains = each.between.filter((one) => one.to === name),
        losses = each.between.filter((one) => one.from === name);
      const total = (moves) => moves.reduce((count, one) => count + one.partitions, 0);
      const words = [
        ...gains.map((one) => `${one.partitions} from ${one.from ?? "no owner"}`),
        ...losses.map((one) => `${one.partitions} to ${one.to ?? "no owner"}`),
      ].join(", ");
      return {
        id: each.id,
        began: each.began,
        got: total(gains),
        gave: total(losses),
        with: words,
        why: each.why.join("; "),
      };
    })
    .filter((row) => row.got || row.gave);

export const member = (route, query) => {
  const id = route.item,
    mine = (cell) => cell.owner === id || cell.to === id;
  const title = element("h2", { tabindex: "-1", class: "owner" }),
    acts = element(
      "div",
      { class: "acts" },
      ...["cordon", "evacuate", "swap"].map((kind) =>
        opener(`${capital(kind)}…`, () => openCommand(kind, { member: nameOf(id) })),
      ),
    ),
    about = element("div"),
    gone = element("p", { class: "empty", hidden: true });
  const facts = element("dl", { class: "facts" });
  const grids = map(() => state.topics, query),
    table = partitionTable(route, query, mine, "Partitions of the member");
  const history = new Table({
    id: "shares",
    label: "What it got and lost",
    columns: HISTORY,
    key: (r) => r.id,
    sort: "-when",
    empty: "Nothing that this server knows.",
  });
  const inner = element(
      "div",
      { class: "body" },
      section("About", about, facts),
      panel("Owners", [grids.chooser], grids.node),
      section("Partitions", table.node),
    ),
    past = section("Got and lost", history.node);
  let drawn = "";
  const update = (kind) => {
    const found = state.members.get(id);
    if (!state.group) return;
    inner.hidden = !found;
    gone.hidden = !!found;
    acts.hidden = !found || !leads();
    gone.textContent = "This member has left the group.";
    if (kind !== "overview") history.show(shares(nameOf(id)));
    if (!found) {
      title.textContent = nameOf(id);
      drawn = "";
      return;
    }
    if (drawn !== found.name) {
      title.replaceChildren(swatch(id), found.name);
      drawn = found.name;
    }
    state.only = id;
    const own = cells().filter((cell) => cell.owner === id);
    about.replaceChildren(
      figures([
        ["partitions", whole(found.partitions)],
        [
          "of all",
          state.group.partitions ? `${((100 * found.partitions) / state.group.partitions).toFixed(1)} %` : "0 %",
        ],
        ["lag", number(sum(own.map(lagOf)))],
        state.loads && ["reported load", number(state.loads.members[id])],
        ["behind", span(oldest(own.map(ageOf)))],
        ["committed", rate(state.offsets ? sum(partitionRows(own).map((row) => row.rate)) : null)],
        found.releasing ? ["releases", whole(found.releasing), true] : null,
      ]),
    );
    const lines = [
      ["client id", found.client_id],
      ["host", found.host],
      ["process", found.pid],
      ["version", found.version],
      [
        "joined",
        found.joined === null || found.joined === undefined
          ? null
          : `${moment(found.joined)} (${ago(found.joined, now())})`,
      ],
      ["session timeout", found.session_timeout_s ? span(found.session_timeout_s) : null],
      ["rack", found.rack ?? "none"],
      ["weight", found.weight],
      ["subscribes to", found.pattern ? `pattern ${found.pattern}` : found.topics?.join(", ")],
      ["allocator functions", found.strategies?.join(", ")],
      ["logs, of a service of systemd", found.logs && element("code", {}, found.logs)],
      ["notes", notes(found) || "none"],
      ["refused", found.refused],
      [inKafka() ? "member id" : "znode", id],
    ].filter(([head, value]) => head !== "refused" || value);
    facts.replaceChildren(
      ...lines.flatMap(([head, value]) => [
        element("dt", {}, head),
        element("dd", {}, value?.nodeType ? value : value === null || value === undefined ? "unknown" : String(value)),
      ]),
    );
    if (kind === "resize") grids.draw();
    else grids.update();
    if (kind !== "overview") table.update();
  };
  return {
    node: element(
      "div",
      { class: "body", "data-from": "zookeeper" },
      element("div", { class: "title" }, title, element("span", { class: "spacer" }), acts),
      gone,
      inner,
      past,
    ),
    needs: "offsets",
    update,
    close: () => {
      table.close();
      history.close();
      state.only = null;
    },
    title: () => `${nameOf(id)} of ${route.group}`,
  };
};

const READERS = [
  {
    key: "member",
    head: "member",
    width: 180,
    grow: true,
    value: (r) => r.name,
    text: (r) => r.name,
    cell: (r) => owner(r.id),
  },
  {
    key: "partitions",
    head: "partitions",
    width: 88,
    numeric: true,
    value: (r) => r.partitions,
    text: (r) => whole(r.partitions),
  },
  { key: "lag", head: "lag", width: 75, numeric: true, value: (r) => r.lag, text: (r) => number(r.lag) },
];
export const topic = (route, query) => {
  const name = route.item,
    mine = () => state.topics.filter((each) => each.name === name);
  const numbers = element("div"),
    look = link(build({ view: "records", item: name }), "Show records", { hidden: true }),
    gone = element("p", { class: "empty", hidden: true }, "The group does not read this topic.");
  const grids = map(mine, query),
    table = partitionTable(route, query, (cell) => cell.topic === name, "Partitions of the topic");
  const readers = new Table({
    id: "readers",
    label: "Owners of the topic",
    columns: READERS,
    key: (r) => r.id,
    sort: "-partitions",
    empty: "No member owns a partition of it.",
  });
  const inner = element(
    "div",
    { class: "body" },
    element("section", { "aria-label": "Figures" }, numbers),
    element(
      "div",
      { class: "columns" },
      panel("Owners", [grids.chooser], grids.node),
      section("Members", readers.node),
    ),
    section("Partitions", table.node),
  );
  const update = (kind) => {
    if (!state.group) return;
    const found = mine()[0];
    look.hidden = !offered();
    inner.hidden = !found;
    gone.hidden = !!found;
    if (!found) return;
    const all = found.cells,
      rows = partitionRows(all),
      none = all.filter((cell) => cell.unowned && cell.to === null).length;
    const by = new Map();
    for (const cell of all) if (cell.owner !== null) by.set(cell.owner, [...(by.get(cell.owner) ?? []), cell]);
    numbers.replaceChildren(
      figures([
        ["partitions", whole(all.length)],
        ["unowned", whole(none), none > 0],
        ["lag", number(sum(all.map(lagOf)))],
        ["behind", age(oldest(all.map(ageOf)))],
        ["committed", rate(state.offsets ? sum(rows.map((row) => row.rate)) : null)],
        [
          "records in the log",
          number(
            state.offsets
              ? sum(rows.map((row) => (row.end === null || row.start === null ? null : row.end - row.start)))
              : null,
          ),
        ],
      ]),
    );
    readers.show(
      [...by].map(([id, own]) => ({ id, name: nameOf(id), partitions: own.length, lag: sum(own.map(lagOf)) })),
    );
    if (kind === "resize") grids.draw();
    else grids.update();
    if (kind !== "overview") table.update();
  };
  return {
    node: element(
      "div",
      { class: "body", "data-from": "zookeeper" },
      element("div", { class: "title" }, element("h2", { tabindex: "-1" }, `Topic ${name}`), look),
      gone,
      inner,
    ),
    needs: "offsets",
    update,
    close: () => {
      table.close();
      readers.close();
    },
    title: () => `Topic ${name} of ${route.group}`,
  };
};
