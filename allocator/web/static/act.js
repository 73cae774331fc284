// Changes to a group. Each one shows a preview first, and runs only after a confirmation.

import { statusLine, change, choice, credentials, field, offers, openDialog, part } from "./requests.js";
import { element } from "./dom.js";
import { plural, whole } from "./format.js";
import { orderForm } from "./order_form.js";
import { words as argumentsOf } from "./orders.js";
import { moved, said } from "./plan.js";
import { inKafka, state } from "./state.js";
import { Table } from "./table.js";

const PLAN = [
  { key: "partition", head: "partition", width: 130, grow: true, value: (r) => `${r.topic}:${r.partition}`, text: (r) => `${r.topic}:${r.partition}` },
  { key: "from", head: "committed", width: 104, numeric: true, value: (r) => r.from, text: (r) => (r.from === null ? "none" : whole(r.from)) },
  { key: "to", head: "new", width: 100, numeric: true, value: (r) => r.to, text: (r) => whole(r.to) },
  { key: "effect", head: "effect", width: 160, numeric: true, value: (r) => (r.from === null ? null : r.to - r.from), text: (r) => effect(r) },
];
const effect = (row) => (row.from === null ? "a first offset" : row.to > row.from ? `skips ${whole(row.to - row.from)}` : row.to < row.from ? `repeats ${whole(row.from - row.to)}` : "no change");
export const sum = (rows) => {
  const known = rows.filter((row) => row.from !== null), of = (sign) => known.filter((row) => sign * (row.to - row.from) > 0);
  const count = (list) => list.reduce((total, row) => total + Math.abs(row.to - row.from), 0);
  const parts = [[of(1), "skipped"], [of(-1), "read again"]].filter(([list]) => list.length).map(([list, words]) => `${plural(count(list), "record")} of ${plural(list.length, "partition")} would be ${words}`);
  const first = rows.length - known.length;
  if (first) parts.push(`${plural(first, "partition")} would get a first offset`);
  return parts.length ? `${parts.join("; ")}.` : "No offset would change.";
};

// local time or UTC, as the user chose
const milliseconds = (text, zone) => { const at = Date.parse(zone === "utc" ? `${text}Z` : text); if (Number.isNaN(at)) throw new Error("choose a date and a time"); return at; };

export const openActions = (group) => {
  const name = group.group, { node: result, button, twice } = statusLine();
  let table = null;
  const members = plural(group.members.length, "member");
  // label, action, preview, result
  const requested = (words, what, says, done) => twice(words, `Yes, ${words.toLowerCase()} ${name}`, () => says, async () => { await change(name, what, {}); return done; });

  // -- offsets ---------------------------------------------------------------------------------------------------
  const plan = element("div"), confirm = element("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const kind = choice("kind", [["earliest", "the first record"], ["latest", "the end: only new records"], ["time", "a time"], ["shift", "a number of records later or earlier"], ["offset", "an offset"]]);
  const when = element("input", { type: "datetime-local", step: "1", name: "when" }), zone = choice("zone", [["local", `local time (${Intl.DateTimeFormat().resolvedOptions().timeZone})`], ["utc", "UTC"]]);
  const amount = element("input", { type: "number", name: "amount", value: "0", step: "1" });
  const topics = element("input", { name: "topics", placeholder: "all of the group", spellcheck: "false" });
  // an element has one parent only, so each choice creates its labels when it is chosen
  const fields = { time: () => [field("Date and time", when), field("Time zone", zone)], shift: () => [field("Records", amount, "negative: earlier, so records are read again")], offset: () => [field("Offset", amount)] };
  const more = element("div");
  const body = () => {
    const target = { earliest: "earliest", latest: "latest", offset: amount.value, shift: `shift:${amount.value}`, get time() { return `timestamp:${milliseconds(when.value, zone.value)}`; } }[kind.value];
    return { to: target, topics: topics.value.split(/[\s]+|,(?!\s*[0-9]+(?:-[0-9]+)?\s*(?:[,\s]|$))/).map((topic) => topic.trim()).filter(Boolean) };
  };
  const show = (rows, place) => {
    table?.close();
    table = new Table({ id: "plan", label: "Plan", columns: PLAN, key: (r) => `${r.topic}:${r.partition}`, empty: "No partition." });
    place.replaceChildren(table.node);
    table.show(rows);
  };
  let planned = null;
  const forget = () => { planned = null; plan.replaceChildren(); };
  kind.addEventListener("change", () => { more.replaceChildren(...(fields[kind.value]?.() ?? [])); forget(); });
  for (const input of [when, zone, amount, topics]) input.addEventListener("input", forget);
  const reset = part("Reset offsets",
    element("p", { class: "muted" }, "Only while the group has no members: members would overwrite these offsets."),
    field("To", kind), more, field("Topics, or orders:0,2-5", topics),
    button("Show the plan", "", async () => {
      const requested = body(), found = await change(name, "offsets/reset", requested);
      show(found.partitions, plan); planned = JSON.stringify(requested);
      return `${sum(found.partitions)} Nothing was changed.${found.members_alive.length ? ` It would be refused: ${found.members_alive.length} members.` : ""}`;
    }), plan,
    field(`To confirm, enter the name of the group: ${name}`, confirm),
    button("Reset offsets", "danger", async () => {
      if (planned !== JSON.stringify(body())) throw new Error("first show the plan of exactly this change");
      const done = await change(name, "offsets/reset", { ...body(), confirm: confirm.value });
      show(done.partitions, plan);
      return done.executed ? `${plural(done.partitions.length, "offset")} committed.` : "Nothing was changed: enter the name of the group.";
    }));

  const other = element("input", { name: "other", spellcheck: "false" }), again = element("input", { name: "other-confirm", autocomplete: "off", spellcheck: "false" }), copied = element("div");
  const copy = part("Copy offsets to another group",
    element("p", { class: "muted" }, "The other group starts at the committed offsets of this group. It must have no members; this group may keep running."),
    field("Other group", other),
    button("Show the plan of the copy", "", async () => {
      const found = await change(name, "offsets/copy", { to: other.value.trim() });
      show(found.partitions, copied);
      return `${sum(found.partitions)} Nothing was changed.${found.members_alive.length ? ` It would be refused: ${found.members_alive.length} members.` : ""}`;
    }), copied,
    field("To confirm, enter the name of the other group", again),
    button("Copy offsets", "danger", async () => { const done = await change(name, "offsets/copy", { to: other.value.trim(), confirm: again.value }); show(done.partitions, copied); return `${plural(done.partitions.length, "offset")} committed for ${done.group}.`; }));

  // -- commands ---------------------------------------------------------------------------------------------------
  const form = orderForm(group), reason = element("input", { name: "order-why", maxlength: "1000" }), hours = element("input", { name: "order-hours", type: "number", min: "0", step: "any", placeholder: "no end" });
  const order = choice("order-kind", form.kinds.map(([kind, says]) => [kind, `${kind}: ${says}`])), details = element("div"), standing = element("div");
  const pick = () => details.replaceChildren(...form.fields(order.value));
  order.addEventListener("change", pick); pick();
  const list = () => standing.replaceChildren(...state.orders.map((each) => element("div", { class: "row" }, element("span", {}, element("b", {}, each.kind), ` ${argumentsOf(each)}`), button(`Withdraw ${each.kind}`, "", async () => { await change(name, "orders/remove", { ids: [each.id] }); state.orders = state.orders.filter((other) => other.id !== each.id); list(); close.focus(); return "Withdrawn."; }))));
  list();
  let given = null;
  const made = () => ({ ...form.order(order.value), why: reason.value, ...(hours.value ? { hours: Number(hours.value) } : {}) });
  const look = button("Show what it moves", "", async () => {
    const { plan: found } = await change(name, "orders/preview", made());
    return `${[moved(found), ...said(found)].join(" ")} Nothing was changed.`;
  });
  const says = () => {
    given = made();
    return `The command ${given.kind} ${form.says(given.kind)}: ${argumentsOf(given) || "the whole group"}. ${hours.value ? `It ends after ${hours.value} h.` : "It stays in force until it is withdrawn."}`;
  };
  const give = twice("Add the command", () => `Yes, ${given.kind}`, says, async () => { const done = await change(name, "orders/put", given); reason.value = hours.value = ""; return `Command ${done.order} is added${done.state_why ? `, but ${done.state}: ${done.state_why}` : ""}. The leader executes it; the summary shows its state.`; });
  const ordering = part("Commands", standing, field("Command", order), details, field("Why", reason), field("Hours", hours, "without a number it stays in force until it is withdrawn"), look, " ", give);

  // -- the end of a group ----------------------------------------------------------------------------------------
  const typed = element("input", { name: "delete-confirm", autocomplete: "off", spellcheck: "false" }), keep = element("input", { type: "checkbox", name: "keep-offsets" });
  let previewed = null;
  keep.addEventListener("change", () => { previewed = null; });
  const remains = (found) => `${plural(found.znodes, "znode")}${found.committed === null ? "" : ` and the committed offsets of ${plural(found.committed, "partition")}`}${found.offsets_stay && found.committed !== 0 ? ` (the offsets stay: ${found.offsets_stay})` : ""}`;
  const ending = part("Delete the group",
    element("p", { class: "muted" }, "Only while the group has no members. It deletes the group's commands and its assignment; a member that joins later starts a new group."),
    element("label", { class: "check field" }, keep, " Keep the committed offsets in Kafka"),
    button("Show what is deleted", "", async () => {
      const found = await change(name, "delete", { keep_offsets: keep.checked });
      previewed = keep.checked;
      return `Would be deleted: ${remains(found)}. Nothing was changed.${found.members_alive.length ? ` It would be refused: ${plural(found.members_alive.length, "member")}.` : ""}`;
    }),
    field(`To delete it, enter the name of the group: ${name}`, typed),
    button("Delete the group", "danger", async () => {
      if (previewed !== keep.checked) throw new Error("first show what is deleted");
      if (typed.value !== name) throw new Error(`enter the name of the group, ${name}`);
      return `Deleted: ${remains(await change(name, "delete", { keep_offsets: keep.checked, confirm: typed.value }))}.`;
    }));

  const words = element("input", { name: "note", maxlength: "500", placeholder: "version 1.4.2" });
  const sections = [
    ["rebalance", part("Recompute the assignment", requested("Rebalance", "rebalance", "The leader recomputes the assignment. Partitions that keep their owner do not stop. Use it if the allocator function uses load or racks, which can change while no member joins or leaves.", "Requested: the next generation will follow."))],
    ["pause", part("Pause and resume",
      requested("Pause", "pause", `Members that follow the group's setting finish their records, commit and leave: at most ${members}. The group reads nothing until you resume. Other members continue.`, "Requested: its members will leave."),
      requested("Resume", "resume", "Members that follow the group's setting join again and read from the committed offsets.", "Requested: its members will join."))],
    ...(inKafka() ? [] : [["orders/put", ordering]]), ["offsets/reset", reset], ["offsets/copy", copy],
    ["note", part("Mark a deployment", field("What happened", words, "the history shows it beside the rebalances"), button("Mark", "", async () => { await change(name, "note", { text: words.value }); words.value = ""; return "Noted."; }))],
    ["delete", ending],
  ];
  const close = openDialog(`Change ${name}`, [credentials(), result, ...sections.filter(([what]) => offers(what)).map(([, node]) => node)], { close: () => table?.close() });
};
