// Draws the status page from one stream of events. Each event redraws its part of the page.

import { Grid, Looks, colours, paint, piece, sizeFor } from "./draw.js";
import { Chart, clock, element, number, span, timeline } from "./charts.js";
import { openActions } from "./act.js";

const get = (id) => document.getElementById(id);
const state = { name: null, group: null, lag: null, history: [], points: [], only: null, cursor: null, grids: [] };
const looks = new Looks();
const KEPT = 720;

// -- the stream --------------------------------------------------------------------------------------------------

let stream = null;
const chosen = () => decodeURIComponent(location.hash.replace(/^#/, "")) || null;

const connect = () => {
  stream?.close();
  get("cell").textContent = ""; // it describes the former group
  get("legend").replaceChildren();
  Object.assign(state, { name: chosen(), group: null, lag: null, history: [], points: [], only: null, cursor: null, grids: [], current: true });
  const source = (stream = new EventSource(state.name === null ? "api/events" : `api/events?group=${encodeURIComponent(state.name)}`));
  link("connecting", "quiet busy");
  source.onopen = () => link("live", "good");
  source.onerror = () => {
    link("no connection: this page may be outdated", "bad");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (stream === source) connect(); }, 3000);
  };
  const on = (kind, show) => source.addEventListener(kind, (event) => show(JSON.parse(event.data)));
  on("overview", showOverview);
  on("group", (value) => { state.group = value; showGroup(); });
  on("lag", (value) => { state.lag = value; showLag(); });
  on("rebalances", (value) => { state.history = value; showHistory(); });
  on("findings", showFindings);
  on("series", (value) => { state.points = (value.whole ? [] : state.points).concat(value.points).slice(-KEPT); showCharts(); });
  on("missing", () => { get("group").hidden = true; get("empty").hidden = false; get("empty").textContent = `There is no group “${state.name}”.`; });
};
const link = (words, kind) => { get("link").textContent = words; get("link").className = `badge ${kind}`; };
addEventListener("hashchange", connect);

// -- all groups --------------------------------------------------------------------------------------------------

const showOverview = ({ ready, read_only, groups, problems }) => {
  get("act").hidden = read_only;
  state.current = ready;
  link(problems.length ? "connected, but a cluster does not answer" : "live", problems.length ? "busy" : "good");
  if (state.group) showPhase();
  const focused = document.activeElement?.closest?.("#groups a")?.getAttribute("href");
  get("groups").replaceChildren(...groups.map((each) => {
    const node = element("a", { href: `#${encodeURIComponent(each.group)}`, "aria-current": each.group === state.name ? "page" : undefined, title: `${each.phase}, ${each.members} members, ${each.partitions} partitions` }, each.group);
    if (each.paused) node.append(element("span", { class: "badge busy" }, "paused"));
    else if (each.phase !== "stable") node.append(element("span", { class: `badge ${each.phase === "rebalancing" ? "busy" : "quiet"}` }, each.phase));
    if (each.problems) node.append(element("span", { class: "count" }, `${each.problems}!`));
    return node;
  }));
  if (focused) [...get("groups").children].find((node) => node.getAttribute("href") === focused)?.focus();
  get("wrong").hidden = !problems.length;
  get("wrong").replaceChildren(...problems.map((problem) => element("div", {}, problem)));
  if (state.name === null) {
    if (groups.length) { history.replaceState(null, "", `#${encodeURIComponent(groups[0].group)}`); connect(); return; }
    get("group").hidden = true;
    get("empty").hidden = false;
    get("empty").textContent = ready ? "There is no group yet. One appears here when its first member joins." : problems.length ? "No data yet." : "Waiting for the first response.";
  }
};

// -- one group ---------------------------------------------------------------------------------------------------

const expand = (ranges) => ranges.split(",").flatMap((run) => {
  const [first, last] = run.split("-").map(Number);
  return Array.from({ length: (last ?? first) - first + 1 }, (_, at) => first + at);
});

const showGroup = () => {
  const group = state.group;
  get("empty").hidden = true;
  get("group").hidden = false;
  document.title = `${group.problems ? "(!) " : ""}${group.group} – allocator`;
  get("name").textContent = group.group;
  showPhase();
  get("strategy").textContent = group.strategy ? `allocator function ${group.strategy}` : "";
  looks.keep(group.members.map((member) => member.id));
  const ids = group.members.map((member) => member.id);
  state.topics = group.topics.map((topic) => {
    const unowned = new Set(topic.unowned);
    return {
      name: topic.topic,
      cells: expand(topic.partitions).map((n, at) => ({
        number: n,
        owner: topic.owners[at] < 0 ? null : ids[topic.owners[at]],
        to: n in topic.to ? ids[topic.to[n]] : null,
        moved: n in topic.moved,
        from: topic.moved[n] ?? null,
        unowned: unowned.has(n),
        retired: topic.retired,
      })),
    };
  });
  showFigures();
  showMembers();
  buildGrids();
  drawGrids();
};

// without ZooKeeper the current phase is unknown
const showPhase = () => {
  const group = state.group;
  const phase = group.paused ? `paused${group.members.length ? `, going on: ${group.members.length}` : ""}` : group.phase;
  get("phase").textContent = state.current ? phase : `${phase} when ZooKeeper last answered`;
  get("phase").className = `badge ${!state.current ? "quiet" : group.paused ? "busy" : { stable: "good", rebalancing: "busy", empty: "quiet" }[group.phase]}`;
};

const showFigures = () => {
  const group = state.group, cells = state.topics.flatMap((topic) => topic.cells);
  const moving = cells.filter((cell) => cell.to !== null).length, none = cells.filter((cell) => cell.unowned && cell.to === null).length;
  const now = state.points.at(-1), rate = (value) => (value === null || value === undefined ? "–" : `${number(value)}/s`);
  const figures = [
    ["generation", group.generation], ["members", group.members.length], ["partitions", group.partitions],
    ["moving", moving], ["unowned", none, none > 0], ["lag", state.lag ? number(state.lag.lag) : number(group.lag)],
    ["written", rate(now?.produced)], ["committed", rate(now?.consumed)],
  ];
  get("figures").replaceChildren(...figures.map(([what, value, bad]) => element("div", { class: bad ? "bad" : undefined }, element("dt", {}, what), element("dd", {}, typeof value === "number" ? value.toLocaleString("en").replaceAll(",", "\u202f") : value))));
};

const showMembers = () => {
  const rows = state.group.members.map((member) => {
    const swatch = element("canvas", { class: "swatch", width: 52, height: 40 });
    const look = looks.of(member.id), c = swatch.getContext("2d");
    paint(c, 0, 0, 52, look, 40);
    c.fillStyle = look.fill; c.fillRect(13, 9, 26, 22);
    c.fillStyle = look.ink; c.font = "600 20px system-ui, sans-serif"; c.textAlign = "center"; c.textBaseline = "middle"; c.fillText(look.tag, 26, 21);
    const notes = [
      member.id === state.group.leader && "leads", member.gone && "its znode is deleted, its claim exists",
      member.refused && "refused", member.releasing && `releases ${member.releasing}`, member.rack && `rack ${member.rack}`, member.weight > 0 && member.weight !== 1 && `weight ${member.weight}`,
    ].filter(Boolean).join(", ");
    const button = element("button", { type: "button", "aria-pressed": String(state.only === member.id), title: member.id },
      swatch, element("span", {}, member.name, ...(notes ? [element("small", {}, notes)] : [])));
    const row = element("tr", { class: state.only === member.id ? "on" : undefined, "data-member": member.id }, element("td", {}, button), element("td", {}, member.host ?? "–"),
      element("td", { class: "n" }, String(member.partitions)), element("td", { class: "n" }, number(lagOfMember(member))));
    button.addEventListener("click", () => { state.only = state.only === member.id ? null : member.id; state.held = state.only; showMembers(); drawGrids(); });
    row.addEventListener("pointerenter", () => { state.only = member.id; drawGrids(); });
    row.addEventListener("pointerleave", () => { state.only = state.held ?? null; drawGrids(); });
    return row;
  });
  const focused = document.activeElement?.closest?.("#members tr")?.dataset.member;
  get("members").tBodies[0].replaceChildren(...rows);
  if (focused) rows.find((row) => row.dataset.member === focused)?.querySelector("button").focus();
};
const lagOfMember = (member) => (state.lag ? state.lag.members[member.id] ?? null : null);

// -- the grids ---------------------------------------------------------------------------------------------------

const buildGrids = () => {
  const names = state.topics.map((topic) => topic.name);
  if (names.length === state.grids.length && names.every((name, at) => name === state.grids[at].name)) {
    state.grids.forEach((grid, at) => { grid.title.textContent = `${names[at]} `; grid.title.append(element("span", { class: "muted" }, `${state.topics[at].cells.length} partitions`)); });
    return;
  }
  state.grids = names.map((name, at) => {
    const canvas = element("canvas", { "aria-hidden": "true" }), title = element("h4", {}, `${name} `, element("span", { class: "muted" }, `${state.topics[at].cells.length} partitions`));
    const grid = { name, title, box: element("div", {}, title, canvas), grid: new Grid(canvas) };
    canvas.addEventListener("pointermove", (event) => { const cell = grid.grid.at(event); if (cell !== null) tell(at, cell); });
    canvas.addEventListener("click", (event) => { const cell = grid.grid.at(event); if (cell !== null) { state.cursor = [at, cell]; drawGrids(); tell(at, cell); } });
    return grid;
  });
  const box = get("grids");
  box.replaceChildren(...state.grids.map((grid) => grid.box));
  box.tabIndex = 0;
  box.setAttribute("role", "application");
  box.setAttribute("aria-label", "Partitions by topic. Arrow keys choose one, page up and page down change the topic. The text below describes it.");
};

const drawGrids = () => {
  const size = sizeFor(state.group.partitions, get("grids").clientWidth);
  state.grids.forEach((grid, at) => grid.grid.draw(state.topics[at].cells, size, looks, { only: state.only, cursor: state.cursor?.[0] === at ? state.cursor[1] : null }));
  const all = state.topics.flatMap((topic) => topic.cells);
  const count = (words, kind, cell) => element("span", {}, sample(cell), `${words} ${kind}`);
  const moved = all.filter((cell) => cell.moved).length, moving = all.filter((cell) => cell.to !== null).length, none = all.filter((cell) => cell.unowned && cell.to === null).length;
  const retired = all.filter((cell) => cell.retired).length;
  const who = state.group.members[0]?.id ?? null;
  get("legend").replaceChildren(
    count(moved, "moved in the last rebalance", { owner: who, to: null, moved: true }),
    count(moving, "moving (frame: new owner)", { owner: null, to: who, moved: false }),
    count(none, "without an owner", { owner: null, to: null, moved: false, unowned: true }),
    ...(retired ? [count(retired, "that no member subscribes to", { owner: null, to: null, moved: false, unowned: false })] : []));
};
const sample = (cell) => {
  const box = element("i", {}), canvas = element("canvas", { width: 22, height: 22 }), ink = colours();
  piece(canvas.getContext("2d"), 1, 1, 20, 20, cell, cell.owner ? { of: () => ({ fill: ink.hatch, texture: 0, ink: "#fff", tag: "" }) } : looks, ink);
  box.append(canvas);
  return box;
};

const called = (id) => {
  const member = state.group.members.find((each) => each.id === id);
  return member ? `${looks.of(id).tag} ${member.name}` : id;
};
const tell = (topic, at) => {
  const cell = state.topics[topic]?.cells[at];
  if (!cell) return;
  const lag = state.lag?.topics[state.topics[topic].name]?.[at];
  const words = [`${state.topics[topic].name} ${cell.number}`, cell.owner === null ? (cell.to === null ? (cell.retired ? "no member subscribes to it" : "has no owner") : `goes to ${called(cell.to)}`) : `owned by ${called(cell.owner)}`];
  if (cell.owner !== null && cell.to !== null) words.push(`goes to ${called(cell.to)} once it is released`);
  if (cell.moved) words.push(`moved from ${cell.from}`);
  if (lag !== undefined) words.push(lag === null ? "lag unknown" : `lag ${lag}`);
  get("cell").textContent = words.join(" · ");
};

get("grids").addEventListener("keydown", (event) => {
  if (!state.topics?.length) return;
  let [topic, at] = state.cursor ?? [0, 0];
  const columns = state.grids[topic].grid.columns;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  if (event.key in steps) at += state.cursor ? steps[event.key] : 0;
  else if (event.key === "Home") at = 0;
  else if (event.key === "End") at = state.topics[topic].cells.length - 1;
  else if (event.key === "PageDown") { topic = Math.min(topic + 1, state.topics.length - 1); at = 0; }
  else if (event.key === "PageUp") { topic = Math.max(topic - 1, 0); at = 0; }
  else if (event.key === "Escape") { state.cursor = null; drawGrids(); return; }
  else return;
  event.preventDefault();
  if (at < 0 && topic > 0) { topic -= 1; at = state.topics[topic].cells.length - 1; }
  if (at >= state.topics[topic].cells.length && topic < state.topics.length - 1) { topic += 1; at = 0; }
  at = Math.max(0, Math.min(at, state.topics[topic].cells.length - 1));
  state.cursor = [topic, at];
  drawGrids();
  tell(topic, at);
});

// -- what happened, and figures over time ------------------------------------------------------------------------

// most moves share one member, which joined or left: name it once
const ways = (between) => {
  const all = (end) => between.length > 1 && between.every((one) => one[end] === between[0][end]);
  const called = (name) => name ?? "nobody", some = between.slice(0, 6), more = between.length > 6 ? ", …" : "";
  const each = (end) => some.map((one) => `${called(one[end])} ${one.partitions}`).join(", ") + more;
  if (all("from")) return `${called(between[0].from)} → ${each("to")}`;
  if (all("to")) return `${each("from")} → ${called(between[0].to)}`;
  return some.map((one) => `${called(one.from)} → ${called(one.to)} ${one.partitions}`).join(", ") + more;
};
const took = (each) => (each.ended === null ? "goes on" : each.took_s === null ? "not seen" : span(each.took_s));
const opened = Date.now() / 1000;
const showHistory = () => {
  const rows = state.history.map((each) => element("tr", {},
    element("td", {}, String(each.generation)),
    element("td", {}, clock(each.began)),
    element("td", { class: "n" }, took(each), ...(each.unnoticed_s === 0 ? [] : [element("small", { title: "ZooKeeper notices a crash once the member's session times out; its partitions stand still until then" }, each.unnoticed_s === null ? " + until a crash was noticed, if it was one" : ` + up to ${span(each.unnoticed_s)} until noticed`)]), ...(each.superseded ? [element("small", {}, " superseded")] : [])),
    element("td", { class: "n" }, `${each.moved} of ${each.total}`),
    element("td", {}, each.why.join("; ") + (each.waited_for.length ? ` (waited for ${each.waited_for.map((one) => `${one.member} ${span(one.s)}`).join(", ")})` : "")),
    element("td", {}, ways(each.between))));
  get("history").tBodies[0].replaceChildren(...rows);
  get("history").hidden = !rows.length;
  get("since").textContent = rows.length ? "since this server watches" : "none since this server watches";
  timeline(get("timeline"), state.history, state.points[0]?.at ?? opened, Date.now() / 1000);
};

const showFindings = (findings) => {
  get("findings").className = findings.some((each) => each.severity === "critical") ? "" : findings.some((each) => each.severity === "warning") ? "warned" : "none";
  get("findings").querySelector("ul").replaceChildren(...(findings.length ? findings : [{ severity: "good", what: "No findings." }]).map((each) => {
    const kind = { critical: "bad", warning: "busy", good: "good" }[each.severity] ?? "quiet";
    const more = [each.where, each.why, each.do].filter(Boolean).join(" · ");
    return element("li", {}, element("b", { class: `badge ${kind}` }, each.severity), each.what,
      ...(more ? [element("span", { class: "remedy" }, more, ...(each.command ? [" ", element("code", {}, each.command)] : []))] : []));
  }));
};

const charts = [
  new Chart("Lag", [{ key: "lag", label: "records", kind: "a" }]),
  new Chart("Throughput", [{ key: "consumed", label: "committed", kind: "a" }, { key: "produced", label: "written", kind: "b" }], "/s"),
  new Chart("Commits", [{ key: "commits", label: "partitions", kind: "a" }], "/s"),
];
get("charts").append(...charts.map((chart) => chart.figure));
const showCharts = () => { for (const chart of charts) chart.show(state.points, state.history.map((each) => each.began)); };
const showLag = () => { if (state.group) { showFigures(); showMembers(); } };

// ----------------------------------------------------------------------------------------------------------------

get("act").addEventListener("click", () => openActions(state.group));
let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => { if (state.group) { drawGrids(); showCharts(); showHistory(); } }, 100); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (state.group) { drawGrids(); showCharts(); } });
setInterval(() => { if (state.group && !document.hidden) showHistory(); }, 5000);
connect();
