// The changes of a group, a dialog for each. The first click shows what would change, the second one changes it.

import { capital, change, choice, credentials, field, offers, openDialog, opener, statusLine } from "./requests.js";
import { element } from "./dom.js";
import { plural, whole } from "./format.js";
import { commandForm } from "./command_form.js";
import { words as argumentsOf } from "./commands.js";
import { moved, said } from "./plan.js";
import { state } from "./state.js";
import { Table } from "./table.js";

const PLAN = [
  {
    key: "partition",
    head: "partition",
    width: 130,
    grow: true,
    value: (r) => `${r.topic}:${r.partition}`,
    text: (r) => `${r.topic}:${r.partition}`,
  },
  {
    key: "from",
    head: "committed",
    width: 104,
    numeric: true,
    value: (r) => r.from,
    text: (r) => (r.from === null ? "none" : whole(r.from)),
  },
  { key: "to", head: "new", width: 100, numeric: true, value: (r) => r.to, text: (r) => whole(r.to) },
  {
    key: "effect",
    head: "effect",
    width: 160,
    numeric: true,
    value: (r) => (r.from === null ? null : r.to - r.from),
    text: (r) => effect(r),
  },
];
const effect = (row) =>
  row.from === null
    ? "a first offset"
    : row.to > row.from
      ? `skips ${whole(row.to - row.from)}`
      : row.to < row.from
        ? `repeats ${whole(row.from - row.to)}`
        : "no change";
export const sum = (rows) => {
  const known = rows.filter((row) => row.from !== null),
    of = (sign) => known.filter((row) => sign * (row.to - row.from) > 0);
  const count = (list) => list.reduce((total, row) => total + Math.abs(row.to - row.from), 0);
  const parts = [
    [of(1), "skipped"],
    [of(-1), "read again"],
  ]
    .filter(([list]) => list.length)
    .map(
      ([list, words]) => `${plural(count(list), "record")} of ${plural(list.length, "partition")} would be ${words}`,
    );
  const first = rows.length - known.length;
  if (first) parts.push(`${plural(first, "partition")} would get a first offset`);
  return parts.length ? `${parts.join("; ")}.` : "No offset would change.";
};
const refusal = (found) =>
  found.members_alive.length
    ? ` It would be refused: ${plural(found.members_alive.length, "member")}.`
    : found.offsets_refused
      ? ` It would be refused: ${found.offsets_refused}.`
      : "";

// A change of the group: `says()` returns what it would do, `work()` does it
const ask = (words, about, inputs, says, work, close = null) => {
  const name = state.group.group,
    { node: result, twice } = statusLine();
  openDialog(
    `${words}: ${name}`,
    [
      credentials(),
      element("p", { class: "muted" }, about),
      ...inputs,
      twice(words, `Yes, ${words.toLowerCase()}`, says, work),
      result,
    ],
    { close },
  );
};
// A change of offsets: the plan, and a second click with a name. `body()` returns the request, `target()` the name to enter
const offsets = (words, about, inputs, what, body, target) => {
  const name = state.group.group,
    confirm = element("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const table = new Table({
      id: "plan",
      label: "Plan",
      columns: PLAN,
      key: (r) => `${r.topic}:${r.partition}`,
      empty: "No partition.",
    }),
    plan = element("div");
  const show = (rows) => {
    plan.replaceChildren(table.node);
    table.show(rows);
  };
  let given = null;
  ask(
    words,
    about,
    [...inputs, plan, field("To confirm, enter the name of the group whose offsets change", confirm)],
    async () => {
      given = body();
      const found = await change(name, what, given);
      show(found.partitions);
      return `${sum(found.partitions)}${refusal(found)}`;
    },
    async () => {
      if (confirm.value !== target(given)) throw new Error(`enter the name of the group, ${target(given)}`);
      const done = await change(name, what, { ...given, confirm: confirm.value });
      show(done.partitions);
      return `${plural(done.partitions.length, "offset")} committed for ${done.group}.`;
    },
    () => table.close(),
  );
};

// local time or UTC, as the user chose
const milliseconds = (text, zone) => {
  const at = Date.parse(zone === "utc" ? `${text}Z` : text);
  if (Number.isNaN(at)) throw new Error("choose a date and a time");
  return at;
};
const reset = () => {
  const kind = choice("kind", [
    ["earliest", "the first record"],
    ["latest", "the end: only new records"],
    ["time", "a time"],
    ["shift", "a number of records later or earlier"],
    ["offset", "an offset"],
  ]);
  const when = element("input", { type: "datetime-local", step: "1", name: "when" }),
    zone = choice("zone", [
      ["local", `local time (${Intl.DateTimeFormat().resolvedOptions().timeZone})`],
      ["utc", "UTC"],
    ]);
  const amount = element("input", { type: "number", name: "amount", value: "0", step: "1" });
  const topics = element("input", { name: "topics", placeholder: "all of the group", spellcheck: "false" });
  // an element has one parent only, so each choice creates its labels when it is chosen
  const fields = {
    time: () => [field("Date and time", when), field("Time zone", zone)],
    shift: () => [field("Records", amount, "negative: earlier, so records are read again")],
    offset: () => [field("Offset", amount)],
  };
  const more = element("div");
  kind.addEventListener("change", () => more.replaceChildren(...(fields[kind.value]?.() ?? [])));
  const body = () => {
    const target = {
      earliest: "earliest",
      latest: "latest",
      offset: amount.value,
      shift: `shift:${amount.value}`,
      get time() {
        return `timestamp:${milliseconds(when.value, zone.value)}`;
      },
    }[kind.value];
    return {
      to: target,
      topics: topics.value
        .split(/[\s]+|,(?!\s*[0-9]+(?:-[0-9]+)?\s*(?:[,\s]|$))/)
        .map((topic) => topic.trim())
        .filter(Boolean),
    };
  };
  const name = state.group.group;
  offsets(
    "Reset offsets",
    "Only while the group has no members: members would overwrite these offsets.",
    [field("To", kind), more, field("Topics, or orders:0,2-5", topics)],
    "offsets/reset",
    body,
    () => name,
  );
};
const copy = () => {
  const other = element("input", { name: "other", spellcheck: "false" });
  offsets(
    "Copy offsets",
    "Another group starts at the committed offsets of this group. It must have no members; this group may keep running.",
    [field("Other group", other)],
    "offsets/copy",
    () => ({ to: other.value.trim() }),
    (given) => given.to,
  );
};
const rebalance = () => {
  const name = state.group.group;
  ask(
    "Rebalance",
    "The leader recomputes the assignment. Partitions that keep their owner do not stop. Use it if the allocator function uses load or racks, which can change while no member joins or leaves.",
    [],
    async () => {
      const found = await change(name, "plan", {});
      return [moved(found), ...said(found)].join(" ");
    },
    async () => {
      await change(name, "rebalance", {});
      return "Requested: the next generation will follow.";
    },
  );
};
const pause = () => {
  const { group: name, members, paused } = state.group;
  const [words, what, about, done] = paused
    ? [
        "Resume",
        "resume",
        "Members that follow the group's setting join again and read from the committed offsets.",
        "join",
      ]
    : [
        "Pause",
        "pause",
        "Members that follow the group's setting finish their records, commit and leave. The group reads nothing until you resume. Other members continue.",
        "leave",
      ];
  ask(
    words,
    about,
    [],
    () =>
      paused
        ? "Its members would join."
        : `At most ${plural(members.length, "member")} with ${plural(state.group.partitions, "partition")} would leave.`,
    async () => {
      await change(name, what, {});
      return `Requested: its members will ${done}.`;
    },
  );
};
const remove = () => {
  const name = state.group.group,
    typed = element("input", { name: "delete-confirm", autocomplete: "off", spellcheck: "false" }),
    keep = element("input", { type: "checkbox", name: "keep-offsets" });
  const remains = (found) =>
    `${plural(found.znodes, "znode")}${found.committed === null ? "" : ` and the committed offsets of ${plural(found.committed, "partition")}`}` +
    `${found.offsets_stay && found.committed !== 0 ? ` (the offsets stay: ${found.offsets_stay})` : ""}`;
  let given = null;
  ask(
    "Delete",
    "Only while the group has no members. It deletes the group's commands and its assignment; a member that joins later starts a new group.",
    [
      element("label", { class: "check field" }, keep, " Keep the committed offsets in Kafka"),
      field(`To confirm, enter the name of the group: ${name}`, typed),
    ],
    async () => {
      given = { keep_offsets: keep.checked };
      const found = await change(name, "delete", given);
      return `Would be deleted: ${remains(found)}.${refusal(found)}`;
    },
    async () => {
      if (typed.value !== name) throw new Error(`enter the name of the group, ${name}`);
      return `Deleted: ${remains(await change(name, "delete", { ...given, confirm: typed.value }))}.`;
    },
  );
};
const note = () => {
  const name = state.group.group,
    words = element("input", { name: "note", maxlength: "500", placeholder: "version 1.4.2" }),
    { node: result, button } = statusLine();
  openDialog(`Mark a deployment of ${name}`, [
    credentials(),
    field("What happened", words, "the history shows it beside the rebalances"),
    button("Mark", "", async () => {
      await change(name, "note", { text: words.value });
      words.value = "";
      return "Noted.";
    }),
    result,
  ]);
};
const CHANGES = {
  rebalance: ["Rebalance…", rebalance],
  pause: ["Pause…", pause],
  "offsets/reset": ["Reset offsets…", reset],
  "offsets/copy": ["Copy offsets…", copy],
  note: ["Mark a deployment…", note],
  delete: ["Delete…", remove],
};

// The buttons for the changes of the whole group
export const groupActions = () => {
  const buttons = Object.entries(CHANGES).map(([what, [words, open]]) => [what, opener(words, open)]);
  const node = element("div", { id: "acts", class: "acts" }, ...buttons.map(([, button]) => button));
  const update = () => {
    for (const [what, button] of buttons) {
      button.hidden = !state.group || !offers(what);
      if (what === "pause") button.textContent = state.group?.paused ? "Resume…" : "Pause…";
    }
  };
  return { node, update };
};

// Adds a command to the leader; `preset` has known arguments, such as the member
export const openCommand = (kind, preset = {}) => {
  const name = state.group.group,
    form = commandForm(state.group, preset),
    reason = element("input", { name: "command-why", maxlength: "1000" });
  const hours = element("input", {
      name: "command-hours",
      type: "number",
      min: "0",
      step: "any",
      placeholder: "no end",
    }),
    { node: result, twice } = statusLine();
  let given = null;
  openDialog(`${capital(kind)} ${preset.member ?? name}`, [
    credentials(),
    element("p", { class: "muted" }, state.hello.commands[kind]),
    ...form.fields(kind),
    field("Why", reason),
    field("Hours", hours, "without a number it stays in force until it is withdrawn"),
    twice(
      capital(kind),
      `Yes, ${kind}`,
      async () => {
        given = { ...form.command(kind), why: reason.value, ...(hours.value ? { hours: Number(hours.value) } : {}) };
        const { plan } = await change(name, "commands/preview", given);
        return `${argumentsOf(given) || "The whole group"}: ${[moved(plan), ...said(plan)].join(" ")} ${hours.value ? `It ends after ${hours.value} h.` : "It stays in force until it is withdrawn."}`;
      },
      async () => {
        const done = await change(name, "commands/put", given);
        return `Command ${done.command} is added${done.state_why ? `, but ${done.state}: ${done.state_why}` : ""}. The leader executes it; the summary shows its state.`;
      },
    ),
    result,
  ]);
};
export const openWithdrawal = (command) => {
  const name = state.group.group,
    { node: result, twice } = statusLine();
  openDialog(`Withdraw ${command.kind}`, [
    credentials(),
    element(
      "p",
      { class: "muted" },
      `${command.kind} ${argumentsOf(command)}, by ${command.who}${command.why ? `: ${command.why}` : ""}`,
    ),
    twice(
      "Withdraw",
      `Yes, withdraw ${command.kind}`,
      () => "The command ends for all that it is about.",
      async () => {
        await change(name, "commands/remove", { ids: [command.id] });
        return "Withdrawn.";
      },
    ),
    result,
  ]);
};
