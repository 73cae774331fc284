// Changes to a group. Each says first what it will do, and is made only after that. The token stays in this page.

import { element } from "./dom.js";
import { plural, whole } from "./format.js";
import { words as argumentsOf } from "./orders.js";
import { state } from "./state.js";
import { Table } from "./table.js";

let token = "";
const dialog = document.getElementById("dialog");

const ask = async (group, what, body) => {
  const answer = await fetch(`api/groups/${encodeURIComponent(group)}/${what}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) },
    body: JSON.stringify(body),
  });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error.message);
  return value;
};

const field = (label, input, hint = "") => element("label", {}, label, input, hint ? element("small", { class: "muted" }, hint) : null);
const choice = (name, options) => element("select", { name }, ...options.map(([value, words]) => element("option", { value }, words)));

const PLAN = [
  { key: "partition", head: "partition", width: 150, value: (r) => `${r.topic}:${r.partition}`, text: (r) => `${r.topic}:${r.partition}` },
  { key: "from", head: "committed", width: 100, rank: 1, numeric: true, value: (r) => r.from, text: (r) => (r.from === null ? "none" : whole(r.from)) },
  { key: "to", head: "new", width: 100, rank: 2, numeric: true, value: (r) => r.to, text: (r) => whole(r.to) },
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
  const name = group.group, offered = state.hello?.actions ?? [];
  const answer = element("p", { class: "answer", role: "status" });
  let table = null;
  const tell = async (work, node) => {
    answer.className = "answer"; answer.textContent = "…"; if (node) node.disabled = true;
    try { answer.textContent = await work(); } catch (error) { answer.className = "answer bad"; answer.textContent = error.message; }
    if (node) { node.disabled = false; node.focus(); }
  };
  const button = (words, kind, work) => element("button", { type: "button", class: kind, onclick: (event) => tell(work, event.currentTarget) }, words);
  // the first press says what will happen, the second does it
  const twice = (words, what, body, says, done) => {
    const box = element("div", { class: "step" });
    const first = element("button", { type: "button" }, words);
    const yes = button(`Yes, ${words.toLowerCase()} ${name}`, "danger", async () => { await ask(name, what, body); close(); return done; });
    const no = element("button", { type: "button" }, "No");
    const close = () => { box.replaceChildren(first); first.focus(); };
    first.addEventListener("click", () => { box.replaceChildren(element("p", {}, says), yes, " ", no); yes.focus(); });
    no.addEventListener("click", close);
    box.append(first);
    return box;
  };
  const members = plural(group.members.length, "member"), part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);

  const secret = element("input", { type: "password", autocomplete: "off", value: token, name: "token" });
  secret.addEventListener("input", () => { token = secret.value; });

  // -- offsets ---------------------------------------------------------------------------------------------------
  const plan = element("div"), confirm = element("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const kind = choice("kind", [["earliest", "the first record"], ["latest", "the end: only new records"], ["time", "a time"], ["shift", "so many records later or earlier"], ["offset", "an offset"]]);
  const when = element("input", { type: "datetime-local", step: "1", name: "when" }), zone = choice("zone", [["local", `local time (${Intl.DateTimeFormat().resolvedOptions().timeZone})`], ["utc", "UTC"]]);
  const amount = element("input", { type: "number", name: "amount", value: "0", step: "1" });
  const topics = element("input", { name: "topics", placeholder: "all of the group", spellcheck: "false" });
  // an input stands in one place only: each choice makes its labels when it is made
  const fields = { time: () => [field("Date and time", when), field("Time zone", zone)], shift: () => [field("Records", amount, "negative: earlier, so records are read again")], offset: () => [field("Offset", amount)] };
  const more = element("div");
  const body = () => {
    const target = { earliest: "earliest", latest: "latest", offset: amount.value, shift: `shift:${amount.value}`, get time() { return `timestamp:${milliseconds(when.value, zone.value)}`; } }[kind.value];
    return { to: target, topics: topics.value.split(",").map((topic) => topic.trim()).filter(Boolean) };
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
    field("To", kind), more, field("Topics, with commas", topics),
    button("Show the plan", "", async () => {
      const asked = body(), found = await ask(name, "offsets/reset", asked);
      show(found.partitions, plan); planned = JSON.stringify(asked);
      return `${sum(found.partitions)} Nothing was changed.${found.members_alive.length ? ` It would be refused: ${found.members_alive.length} members.` : ""}`;
    }), plan,
    field(`To confirm, enter the name of the group: ${name}`, confirm),
    button("Reset offsets", "danger", async () => {
      if (planned !== JSON.stringify(body())) throw new Error("look at the plan of exactly this change first");
      const done = await ask(name, "offsets/reset", { ...body(), confirm: confirm.value });
      show(done.partitions, plan);
      return done.executed ? `${plural(done.partitions.length, "offset")} committed.` : "Nothing was changed: enter the name of the group.";
    }));

  const other = element("input", { name: "other", spellcheck: "false" }), again = element("input", { name: "other-confirm", autocomplete: "off", spellcheck: "false" }), copied = element("div");
  const copy = part("Copy offsets to another group",
    element("p", { class: "muted" }, "The other group begins where this one is. It must have no members; this one may go on."),
    field("Other group", other),
    button("Show the plan of the copy", "", async () => {
      const found = await ask(name, "offsets/copy", { to: other.value.trim() });
      show(found.partitions, copied);
      return `${sum(found.partitions)} Nothing was changed.${found.members_alive.length ? ` It would be refused: ${found.members_alive.length} members.` : ""}`;
    }), copied,
    field("To confirm, enter the name of the other group", again),
    button("Copy offsets", "danger", async () => { const done = await ask(name, "offsets/copy", { to: other.value.trim(), confirm: again.value }); show(done.partitions, copied); return `${plural(done.partitions.length, "offset")} committed for ${done.group}.`; }));

  // -- orders ----------------------------------------------------------------------------------------------------
  const names = group.members.map((each) => [each.name, each.name]), racks = [...new Set(group.members.map((each) => each.rack).filter(Boolean))];
  const one = choice("order-member", names), second = choice("order-new", names);
  const spots = [...group.members.map((each) => [JSON.stringify({ member: each.name }), each.name]), ...racks.map((rack) => [JSON.stringify({ rack }), `rack ${rack}`])];
  const spot = choice("order-place", spots), which = element("input", { name: "order-partitions", placeholder: "orders:0-3,7 payments:1", spellcheck: "false" });
  const reason = element("input", { name: "order-why", maxlength: "1000" }), hours = element("input", { name: "order-hours", type: "number", min: "0", step: "any", placeholder: "no end" });
  const atOnce = element("input", { name: "order-at-once", type: "number", min: "1" }), perMinute = element("input", { name: "order-per-minute", type: "number", min: "1" });
  const chosen = () => Object.fromEntries(which.value.trim().split(/\s+/).filter(Boolean).map((each) => { const at = each.lastIndexOf(":"); if (at < 1) throw new Error(`${each}: write topic:numbers, such as orders:0-3`); return [each.slice(0, at), each.slice(at + 1)]; }));
  const count = (input) => (input.value === "" ? null : Number(input.value));
  const ORDERS = {
    cordon: ["gives a member no further partitions; it keeps those that it has", () => ({ member: one.value }), () => [field("Member", one)]],
    evacuate: ["gives all partitions of a member to others", () => ({ member: one.value }), () => [field("Member", one)]],
    swap: ["gives all partitions of a member to another one", () => ({ old: one.value, new: second.value }), () => [field("From member", one), field("To member", second)]],
    pin: ["keeps partitions at one member, or within one rack", () => ({ partitions: chosen(), place: JSON.parse(spot.value) }), () => [field("Partitions", which), field("Place", spot)]],
    exclude: ["keeps partitions away from a member or a rack", () => ({ partitions: chosen(), places: [JSON.parse(spot.value)] }), () => [field("Partitions", which), field("Away from", spot)]],
    freeze: ["moves no partition that has a live owner", () => ({}), () => []],
    budget: ["limits how many partitions are on the move", () => ({ at_once: count(atOnce), per_minute: count(perMinute) }), () => [field("At once", atOnce), field("In a minute", perMinute)]],
  };
  const order = choice("order-kind", Object.entries(ORDERS).map(([key, [says]]) => [key, `${key}: ${says}`])), details = element("div"), standing = element("div");
  const pick = () => details.replaceChildren(...ORDERS[order.value][2]());
  order.addEventListener("change", pick); pick();
  const list = () => standing.replaceChildren(...state.orders.map((each) => element("div", { class: "row" }, element("span", {}, element("b", {}, each.kind), ` ${argumentsOf(each)}`), button(`Take back ${each.kind}`, "", async () => { await ask(name, "orders/remove", { ids: [each.id] }); state.orders = state.orders.filter((other) => other.id !== each.id); list(); close.focus(); return "Taken back."; }))));
  list();
  const give = element("div", { class: "step" }), ready = element("button", { type: "button" }, "Give the order");
  const idle = () => give.replaceChildren(ready);
  ready.addEventListener("click", () => {
    let body;
    try { body = { kind: order.value, arguments: ORDERS[order.value][1](), why: reason.value, ...(hours.value ? { hours: Number(hours.value) } : {}) }; } catch (error) { answer.className = "answer bad"; answer.textContent = error.message; return; }
    const yes = button(`Yes, ${order.value}`, "danger", async () => { const done = await ask(name, "orders/put", body); idle(); ready.focus(); return `Order ${done.order} is given. The leader carries it out; the summary shows its state.`; });
    give.replaceChildren(element("p", {}, `The order ${order.value} ${ORDERS[order.value][0]}: ${argumentsOf(body) || "the whole group"}. ${hours.value ? `It ends after ${hours.value} h.` : "It holds until it is taken back."}`), yes, " ", element("button", { type: "button", onclick: () => { idle(); ready.focus(); } }, "No"));
    yes.focus();
  });
  idle();
  const ordering = part("Orders", standing, field("Order", order), details, field("Why", reason), field("Hours", hours, "without a number it holds until it is taken back"), give);

  const words = element("input", { name: "note", maxlength: "500", placeholder: "version 1.4.2" });
  const sections = [
    ["rebalance", part("Recompute the assignment", twice("Rebalance", "rebalance", {}, "The leader computes the assignment anew. Partitions that the allocator function leaves where they are do not stop. It helps when the function heeds load or racks, which change without a member that joins.", "Requested: the next generation will follow."))],
    ["pause", part("Pause and resume",
      twice("Pause", "pause", {}, `Members that follow the group's setting finish their records, commit and leave: at most ${members}. The group reads nothing until you resume. Other members go on.`, "Requested: its members will leave."),
      twice("Resume", "resume", {}, "Members that follow the group's setting join again and read from the committed offsets.", "Requested: its members will join."))],
    ["orders/put", ordering], ["offsets/reset", reset], ["offsets/copy", copy],
    ["note", part("Mark a deployment", field("What happened", words, "it stands in the history beside the rebalances"), button("Mark", "", async () => { await ask(name, "note", { text: words.value }); words.value = ""; return "Noted."; }))],
  ];
  const close = element("button", { type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(
    element("h2", { id: "dialog-title" }, `Change ${name}`),
    state.hello?.needs_token === false ? element("p", { class: "muted" }, `You are ${state.hello.user}. Each change is logged with your name.`) : element("form", { onsubmit: (event) => event.preventDefault() }, element("p", { class: "muted" }, "Every change needs the token of the server, and is logged."), field("Token", secret)),
    answer,
    ...sections.filter(([what]) => offered.includes(what)).map(([, node]) => node),
    element("div", { class: "row" }, close),
  );
  dialog.addEventListener("close", () => { table?.close(); document.getElementById("act")?.focus(); }, { once: true });
  dialog.showModal();
};
