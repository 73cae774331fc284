// Two moments of a group side by side, and the log of changes.

import { answers, authorization, credentials, read } from "./ask.js";
import { element, link } from "./dom.js";
import { flow } from "./flow.js";
import { age, moment, number, plural, rate, whole } from "./format.js";
import { field, section, to } from "./parts.js";
import { build } from "./route.js";
import { looks, now, state } from "./state.js";
import { Table } from "./table.js";

const MOVES = [
  { key: "partition", head: "partition", width: 160, value: (r) => r.name, text: (r) => r.name, cell: (r) => link(to("topic", r.topic, { q: `:${r.number}` }), r.name) },
  { key: "from", head: "owner then", width: 200, text: (r) => r.from },
  { key: "to", head: "owner later", width: 200, text: (r) => r.to },
];
const BETWEEN = [
  { key: "when", head: "when", width: 140, value: (r) => r.began, text: (r) => moment(r.began), cell: (r) => link(to("rebalance", r.id), moment(r.began)) },
  { key: "moved", head: "moved", width: 80, numeric: true, value: (r) => r.moved, text: (r) => whole(r.moved) },
  { key: "why", head: "why", width: 400, rank: 1, short: "", text: (r) => r.why.join("; ") },
];
const FIGURES = [["lag", (p) => number(p.lag)], ["behind", (p) => age(p.lag_s)], ["written", (p) => rate(p.produced)], ["committed", (p) => rate(p.consumed)]];
// the value of an input of date and time, in local time
const local = (at) => { const date = new Date(1000 * at); return new Date(date - 60_000 * date.getTimezoneOffset()).toISOString().slice(0, 19); };

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export const compare = (route, query) => {
  const since = Number(route.query.from) || Math.floor(now() - 3600), until = Number(route.query.to) || Math.floor(now());
  const from = element("input", { type: "datetime-local", step: "1", name: "from", value: local(since) }), till = element("input", { type: "datetime-local", step: "1", name: "to", value: local(until) });
  const say = element("p", { class: "muted", role: "status" }), figures = element("table", { class: "plain" }), picture = element("div", { class: "flow" });
  const table = new Table({ id: "moves", label: "Partitions with another owner", columns: MOVES, key: (r) => r.name, sort: "partition", empty: "No partition has another owner." });
  const between = new Table({ id: "between", label: "Rebalances between", columns: BETWEEN, key: (r) => r.id, sort: "-when", empty: "No rebalance between." });
  const save = link("", "Export this time as JSON lines", { download: true, hidden: true });
  const inner = element("div", { class: "body", hidden: true }, section("Figures", figures), section("Who gave what to whom", picture), section("Partitions", table.node), section("Rebalances between", between.node));
  const times = () => [from, till].map((input) => Date.parse(input.value) / 1000);
  const load = async () => {
    const [a, b] = times();
    if (Number.isNaN(a) || Number.isNaN(b) || a >= b) { say.textContent = "Choose two times, the earlier one first."; return; }
    query({ from: a, to: b });
    say.textContent = "…";
    try {
      const answer = await fetch(`api/groups/${encodeURIComponent(route.group)}/compare?from=${a}&to=${b}`), found = await answer.json();
      if (!answer.ok) { say.textContent = found.error.message; return; }
      draw(found, a, b);
    } catch { say.textContent = "The server does not answer."; }
  };
  let drawn = null;
  const draw = (found, a, b) => {
    drawn = [found, a, b];
    const name = (index) => (index < 0 ? "no owner" : found.members[index].name);
    const rows = found.topics.flatMap((topic) => topic.partitions.map((number, at) => ({ topic: topic.topic, number, name: `${topic.topic}:${number}`, from: name(topic.from[at]), to: name(topic.to[at]) })));
    say.textContent = `${plural(rows.length, "partition")} with another owner, ${plural(found.rebalances.length, "rebalance")} between.`;
    const head = (at, point) => `${moment(at)}${point && at - point.at > 60 ? ` (measured ${moment(point.at)})` : ""}`;
    figures.replaceChildren(
      element("thead", {}, element("tr", {}, element("td"), element("th", { scope: "col" }, head(a, found.from)), element("th", { scope: "col" }, head(b, found.to)))),
      element("tbody", {}, ...FIGURES.map(([words, show]) => element("tr", {}, element("th", { scope: "row" }, words), ...[found.from, found.to].map((point) => element("td", {}, point ? show(point) : "unknown"))))));
    inner.hidden = false;
    const pairs = new Map();
    for (const row of rows) pairs.set(`${row.from}\n${row.to}`, { from: row.from, to: row.to, partitions: (pairs.get(`${row.from}\n${row.to}`)?.partitions ?? 0) + 1 });
    const ids = new Map([...state.members.values()].map((each) => [each.name, each.id]));
    picture.replaceChildren(rows.length ? flow([...pairs.values()], Math.max(280, picture.clientWidth), (each) => (ids.has(each) ? looks.of(ids.get(each)) : null)) : element("p", { class: "muted" }, "Nothing moved."));
    table.show(rows);
    between.show(found.rebalances);
    save.hidden = state.hello?.history !== true;
    save.href = `api/groups/${encodeURIComponent(route.group)}/export?from=${a}&to=${b}`;
  };
  const button = element("button", { type: "button", onclick: load }, "Compare");
  if (route.query.from) load();
  return {
    node: element("div", { class: "body" }, element("section", { "aria-label": "Two moments" }, element("div", { class: "filters" }, field(`From, ${zone}`, from), field("To", till), button, save), say), inner),
    update: (kind) => { if (drawn && (kind === "group" || kind === "resize")) draw(...drawn); }, close: () => { table.close(); between.close(); }, title: () => `Compare ${route.group}`,
  };
};

const CHANGES = [
  { key: "when", head: "when", width: 140, value: (r) => r.at, text: (r) => moment(r.at) },
  { key: "who", head: "user", width: 120, text: (r) => r.who ?? "unknown" },
  { key: "group", head: "group", width: 140, text: (r) => r.group ?? "all", cell: (r) => (!r.group ? (r.group ?? "all") : link(build({ view: "summary", group: r.group }), r.group)) },
  { key: "what", head: "change", width: 130, text: (r) => r.text },
  { key: "outcome", head: "outcome", width: 200, rank: 3, text: (r) => r.detail.outcome ?? "unknown" },
  { key: "address", head: "address", width: 110, rank: 1, text: (r) => r.address ?? "unknown" },
  { key: "request", head: "request", width: 260, rank: 2, short: "", text: (r) => JSON.stringify(r.detail.request ?? {}) },
];
export const audit = (route, query) => {
  const table = new Table({ id: "changes", label: "Changes", columns: CHANGES, key: (r) => `${r.at} ${r.text}`, sort: route.query.sort ?? "-when", empty: "No change was asked for.", onsort: (sort) => query({ sort }) });
  const { node: answer, tell, button } = answers();
  const load = async () => { const { changes } = await read("audit"); table.show(changes); found.hidden = false; return `${plural(changes.length, "change")}.`; };
  const found = element("div", { hidden: true }, table.node), form = element("div");
  let asked = false;
  // show the log at once to a user who is logged in, or whose token this page has
  const update = () => {
    if (asked || !state.hello) return;
    asked = true;
    const { role, needs_token: byToken, actions } = state.hello;
    if (!byToken && role !== "operator") answer.textContent = "The changes are for operators.";
    else if (byToken && !actions.length) answer.textContent = "This server is read-only: it was started without a token, so it shows no changes.";
    else { form.replaceChildren(credentials("The changes have names of users and addresses, so they need the token of the server."), button("Show the changes", "", load)); if (!byToken || authorization().Authorization) tell(load); }
  };
  return { node: element("section", { class: "view" }, element("h2", { tabindex: "-1" }, "Changes"), form, answer, found), update, close: () => table.close(), title: () => "Changes" };
};
