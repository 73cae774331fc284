// The moves after hypothetical changes and commands, and the plan as a picture. The leader's code computes the plan.

import { statusLine, change, choice, credentials, field, offers } from "./requests.js";
import { element } from "./dom.js";
import { flow } from "./flow.js";
import { number, plural, span, whole } from "./format.js";
import { bars, ratio, unevenness } from "./load.js";
import { commandForm } from "./command_form.js";
import { words as argumentsOf } from "./commands.js";
import { figures, section } from "./parts.js";
import { looks, state } from "./state.js";
import { Table } from "./table.js";

// "3 partitions would move; each has a standstill of about 12 ms and the time of its handler."
export const moved = (plan) => {
  if (!plan.moves.length) return "No partition would move.";
  const { move_s: each, failed_s: failed, duration_s: whole_s } = plan.standstill;
  return (
    `${plural(plan.moves.length, "partition")} would move; each has a standstill of about ${span(each)} and the time of its handler` +
    `${failed === null ? "" : `, those of failed members for up to ${span(failed)} more`}${whole_s > each ? `; the last one has moved after about ${span(whole_s)}` : ""}.`
  );
};
// the states of commands that have no effect, or none yet
export const said = (plan) =>
  plan.commands
    .filter((each) => !["kept", "done", "given"].includes(each.state))
    .map(
      (each) =>
        `Command ${each.kind} ${argumentsOf(each)} is ${each.state}${each.state_why ? `: ${each.state_why}` : ""}.`,
    );
// Returns the hypothetical changes and commands of a plan as the body of the request
export const request = (items) => {
  const body = {};
  for (const item of items) {
    if (item.command) body.commands = [...(body.commands ?? []), item.command];
    else if (item.what === "function") body.function = item.text;
    else body[item.what] = [...(body[item.what] ?? []), item.text];
  }
  return body;
};

// the allocator functions that the server may call; it imports none that only a member names
const functions = () => (state.hello?.functions ?? []).map((each) => [each, each]);

const SAYS = {
  add: (text) => `${text.split("=")[0]} joins with weight ${text.split("=")[1] ?? 1}`,
  remove: (text) => `${text} leaves`,
  fail: (text) => `${text} crashes`,
  fail_rack: (text) => `all members of rack ${text} crash`,
  weight: (text) => `weight ${text}`,
  partitions: (text) => `partitions ${text}`,
  function: (text) => `allocator function ${text}`,
};
const says = (item) =>
  item.command ? `command ${item.command.kind} ${argumentsOf(item.command)}` : SAYS[item.what](item.text);
const valid = (items) =>
  Array.isArray(items) &&
  items.every(
    (item) =>
      item &&
      (item.command
        ? typeof item.command.kind === "string" && typeof item.command.arguments === "object"
        : item.what in SAYS && typeof item.text === "string"),
  );
const remembered = (text) => {
  try {
    const found = JSON.parse(text ?? "[]");
    return valid(found) ? found : [];
  } catch {
    return [];
  }
};

const MEMBERS = [
  { key: "member", head: "member", width: 190, grow: true, value: (m) => m.name, text: (m) => m.name },
  { key: "change", head: "change", width: 90, text: (m) => m.change ?? "" },
  {
    key: "before",
    head: "before",
    width: 80,
    numeric: true,
    value: (m) => m.partitions_before,
    text: (m) => whole(m.partitions_before),
  },
  {
    key: "after",
    head: "after",
    width: 80,
    numeric: true,
    value: (m) => m.partitions_after,
    text: (m) => whole(m.partitions_after),
  },
  {
    key: "lag_before",
    head: "lag before",
    width: 95,
    numeric: true,
    value: (m) => m.lag_before,
    text: (m) => number(m.lag_before),
  },
  {
    key: "lag_after",
    head: "lag after",
    width: 95,
    numeric: true,
    value: (m) => m.lag_after,
    text: (m) => number(m.lag_after),
  },
];
const MOVES = [
  {
    key: "partition",
    head: "partition",
    width: 130,
    grow: true,
    value: (m) => `${m.topic}:${m.partition}`,
    text: (m) => `${m.topic}:${m.partition}`,
  },
  { key: "from", head: "from", width: 150, grow: true, text: (m) => m.from_name ?? "no owner" },
  { key: "to", head: "to", width: 150, grow: true, text: (m) => m.to_name ?? "no owner" },
];

export const plan = (route, query) => {
  const { node: line, fail, button, twice } = statusLine();
  let items = remembered(route.query.what),
    shown = null,
    built = null,
    form = null;
  const kinds = element("div"),
    details = element("div"),
    listed = element("ul", { class: "plain-list" }),
    inputs = element("div");
  const numbers = element("div"),
    loads = element("div", { class: "load" }),
    picture = element("div", { class: "flow" }),
    states = element("div");
  const members = new Table({
    id: "planned-members",
    label: "Load of the members before and after",
    columns: MEMBERS,
    key: (m) => m.id,
    sort: "member",
    empty: "No members.",
  });
  const moves = new Table({
    id: "planned-moves",
    label: "Partitions that would move",
    columns: MOVES,
    key: (m) => `${m.topic}:${m.partition}`,
    sort: "partition",
    empty: "No partition would move.",
  });
  const result = element(
    "div",
    { class: "body", id: "plan-result", hidden: true },
    section("The plan", numbers, states),
    section("Load before and after", loads, members.node),
    section("Moves between members", picture),
    section("Moves", moves.node),
  );

  // -- hypothetical changes --------------------------------------------------------------------------------------
  const text = (name, hint) => element("input", { name, placeholder: hint, spellcheck: "false" });
  const build = (group) => {
    form = commandForm(group);
    const names = group.members.map((each) => [each.name, each.name]),
      racks = [...new Set(group.members.map((each) => each.rack).filter(Boolean))].map((each) => [each, each]);
    const member = choice("plan-member", names),
      rack = choice("plan-rack", racks),
      name = text("plan-name", "new-worker");
    const weight = element("input", { name: "plan-weight", type: "number", min: "0", step: "any", value: "1" }),
      topic = choice(
        "plan-topic",
        group.topics.map((each) => [each.topic, each.topic]),
      );
    const count = element("input", { name: "plan-count", type: "number", min: "1", step: "1" });
    const fn = choice("plan-function", functions());
    const filled = (input, words) => {
      if (!input.value.trim()) throw new Error(`enter ${words}`);
      return input.value.trim();
    };
    const SUPPOSE = {
      add: [
        "a member joins",
        () => `${filled(name, "a name")}=${filled(weight, "a weight")}`,
        () => [field("Name", name), field("Weight", weight)],
      ],
      remove: ["a member leaves", () => member.value, () => [field("Member", member)]],
      fail: ["a member crashes", () => member.value, () => [field("Member", member)]],
      ...(racks.length
        ? { fail_rack: ["all members of a rack crash", () => rack.value, () => [field("Rack", rack)]] }
        : {}),
      weight: [
        "a member has another weight",
        () => `${member.value}=${filled(weight, "a weight")}`,
        () => [field("Member", member), field("Weight", weight)],
      ],
      partitions: [
        "a topic has more partitions",
        () => `${topic.value}=${filled(count, "a number")}`,
        () => [field("Topic", topic), field("Partitions", count)],
      ],
      function: ["all members use another allocator function", () => fn.value, () => [field("Function", fn)]],
    };
    const what = element(
      "select",
      { name: "plan-what" },
      element(
        "optgroup",
        { label: "Suppose that" },
        ...Object.entries(SUPPOSE).map(([key, [words]]) => element("option", { value: key }, words)),
      ),
      element(
        "optgroup",
        { label: "Commands" },
        ...form.kinds.map((kind) =>
          element("option", { value: `command:${kind}` }, `${kind}: ${state.hello.commands[kind]}`),
        ),
      ),
    );
    const commanded = () => (what.value.startsWith("command:") ? what.value.slice(8) : null);
    const pick = () => details.replaceChildren(...(commanded() ? form.fields(commanded()) : SUPPOSE[what.value][2]()));
    what.addEventListener("change", pick);
    pick();
    kinds.replaceChildren(field("What changes", what));
    const add = () => {
      try {
        items = [
          ...items.filter((each) => !(each.what === "function" && what.value === "function")),
          commanded() ? { command: form.command(commanded()) } : { what: what.value, text: SUPPOSE[what.value][1]() },
        ];
      } catch (error) {
        fail(error);
        return;
      }
      changed();
    };
    inputs.replaceChildren(kinds, details, element("button", { type: "button", onclick: add }, "Add to the plan"));
  };
  const changed = () => {
    query({ what: items.length ? JSON.stringify(items) : "" });
    shown = null;
    result.hidden = true;
    line.textContent = "";
    listed.replaceChildren(
      ...items.map((item) =>
        element(
          "li",
          {},
          says(item),
          " ",
          element(
            "button",
            {
              type: "button",
              class: "quiet",
              "aria-label": `Remove: ${says(item)}`,
              onclick: () => {
                items = items.filter((each) => each !== item);
                changed();
                compute.focus();
              },
            },
            "Remove",
          ),
        ),
      ),
    );
    apply.hidden = !items.length || !items.every((item) => item.command);
  };

  // -- the result ------------------------------------------------------------------------------------------------
  const why = element("input", { name: "plan-why", maxlength: "1000" });
  const compute = button("Show the plan", "", async () => {
    const body = request(items),
      found = await change(route.group, "plan", body);
    shown = { body: JSON.stringify(body), found };
    draw();
    return `${moved(found)} Nothing was changed.`;
  });
  const give = twice(
    "Apply: add these commands",
    "Yes, add these commands",
    () => {
      if (shown?.body !== JSON.stringify(request(items)))
        throw new Error("first show the plan of exactly these commands");
      return `${plural(items.length, "command")} would be added: ${items.map(says).join("; ")}. ${moved(shown.found)} They stay in force until they are withdrawn.`;
    },
    async () => {
      const done = await change(route.group, "plan", { ...request(items), apply: true, why: why.value });
      shown = { ...shown, found: done };
      draw();
      return `Added: ${done.applied.join(", ")}. The summary of the group shows their state.`;
    },
  );
  const apply = element("div", { hidden: true }, field("Why", why), give);
  const draw = () => {
    const { found } = shown,
      of = (key) =>
        unevenness(
          found.members
            .filter((each) =>
              key === "partitions_before" || key === "lag_before"
                ? each.change !== "joins"
                : each.change !== "leaves" && each.change !== "fails",
            )
            .map((each) => each[key]),
        );
    numbers.replaceChildren(
      figures([
        ["moves", whole(found.moves.length)],
        ["from live members", whole(found.voluntary_moves)],
        ["standstill of each", found.moves.length ? span(found.standstill.move_s) : "no move"],
        ["until the last", span(found.standstill.duration_s)],
        ["max/mean before", ratio(of("partitions_before"))],
        ["after", ratio(of("partitions_after"))],
        ["max/mean of lag before", ratio(of("lag_before"))],
        ["of lag after", ratio(of("lag_after"))],
      ]),
    );
    states.replaceChildren(...said(found).map((words) => element("p", { class: "muted" }, words)));
    result.hidden = false;
    const words =
      `Partitions of ${plural(found.members.length, "member")} before and after: max/mean ${ratio(of("partitions_before"))}, ` +
      `then ${ratio(of("partitions_after"))}; the table below has the numbers`;
    loads.replaceChildren(
      element(
        "p",
        { class: "legend" },
        element("span", {}, element("b", { class: "key-was" }, "■"), "before"),
        element("span", {}, element("b", { class: "key-will" }, "■"), "after"),
      ),
      bars(
        found.members.map((each) => ({ name: each.name, now: each.partitions_before, then: each.partitions_after })),
        Math.max(260, loads.clientWidth),
        words,
        "partitions",
      ),
    );
    members.show(found.members);
    moves.show(found.moves);
    const pairs = new Map();
    for (const each of found.moves) {
      const key = `${each.from_name}\n${each.to_name}`,
        pair = pairs.get(key) ?? { from: each.from_name, to: each.to_name, partitions: 0 };
      pair.partitions += 1;
      pairs.set(key, pair);
    }
    const ids = new Map([...state.members.values()].map((each) => [each.name, each.id]));
    picture.replaceChildren(
      pairs.size
        ? flow([...pairs.values()], Math.max(280, picture.clientWidth), (each) =>
            ids.has(each) ? looks.of(ids.get(each)) : null,
          )
        : element("p", { class: "muted" }, "Nothing would move."),
    );
  };
  const asking = section(
    "What would happen if",
    credentials("A plan needs the token of the server. It changes nothing."),
    inputs,
    listed,
    compute,
    apply,
    line,
  );
  const refused = element(
    "p",
    { class: "empty" },
    "This server offers no plans: it is read-only, or you are no operator. `allocator group plan` shows them in a terminal.",
  );
  const node = element("div", { class: "body" }, refused, asking, result);
  changed();
  return {
    node,
    update: (kind) => {
      refused.hidden = offers("plan") || !state.hello;
      asking.hidden = !offers("plan");
      if (asking.hidden || !state.group) return;
      const key = JSON.stringify(state.group.members.map((each) => each.id));
      if (key !== built && !inputs.contains(document.activeElement)) {
        built = key;
        build(state.group);
      }
      if (kind === "resize" && shown) draw();
    },
    close: () => {
      members.close();
      moves.close();
    },
    title: () => `Plan of ${route.group}`,
  };
};
