// The dialogs for operator commands about some partitions: those in force, and one of each kind that adds a command.

import { capital, change, choice, credentials, field, openDialog, statusLine } from "./requests.js";
import { openCommand, sum } from "./act.js";
import { element } from "./dom.js";
import { ago, number, plural, ranges, whole } from "./format.js";
import { partitionsOf } from "./command_form.js";
import { commandsOn, words } from "./commands.js";
import { now, state } from "./state.js";
import { Table } from "./table.js";

export const KINDS = ["pause", "quarantine", "skip", "seek", "pin"];
const ENDS = {
  pause: "Their handlers get records again.",
  quarantine: "Their handlers get records again; the records in the dead-letter topic stay there.",
  skip: "A record that was left out already stays left out.",
  pin: "The partition may be at any member again.",
};

const called = (arguments_) =>
  Object.entries(arguments_)
    .map(([topic, numbers]) => `${topic}:${numbers}`)
    .join(" ");
const argumentsOf = (cells) => {
  const topics = new Map();
  for (const cell of cells) topics.set(cell.topic, [...(topics.get(cell.topic) ?? []), cell.number]);
  return Object.fromEntries([...topics].map(([topic, numbers]) => [topic, ranges(numbers)]));
};

// Returns the effect of a command in a sentence
export const effect = (kind, rows, offset) => {
  const some = plural(rows.length, "partition"),
    lag = rows.reduce((total, row) => (total === null || row.lag === null ? null : total + row.lag), 0);
  const waiting = lag === null ? "an unknown number" : number(lag);
  const unowned = rows.filter((row) => row.owner_name === null).length;
  const alone = unowned
    ? ` ${unowned === rows.length ? "No partition has an owner" : `${plural(unowned, "partition")} without an owner`}: the command takes effect when a member owns it.`
    : "";
  if (kind === "pause")
    return `Handlers get no records of ${some}, of which ${waiting} are waiting now. The lag grows until you withdraw the command.${alone}`;
  if (kind === "quarantine")
    return (
      `The records of ${some} go to the dead-letter topic of the handler, beginning with ${waiting} that are waiting now. ` +
      `A member without such a topic refuses, and the command shows that.${alone}`
    );
  if (kind === "seek")
    return `${sum(rows.map((row) => ({ from: row.committed, to: row.to ?? row.committed })))}${alone}`;
  const { committed, log_end: end, topic, partition } = rows[0];
  const when =
    committed !== null && offset < committed
      ? "It is committed already, so the command changes nothing."
      : end !== null && offset >= end
        ? "It is not written yet."
        : committed === null
          ? ""
          : `${plural(offset - committed, "record")} before it are read as usual.`;
  return `The handler is not called with record ${whole(offset)} of ${topic}:${partition}, which counts as done. ${when}${alone}`;
};

const ROWS = [
  {
    key: "partition",
    head: "partition",
    width: 120,
    grow: true,
    value: (r) => `${r.topic}:${r.partition}`,
    text: (r) => `${r.topic}:${r.partition}`,
  },
  { key: "owner", head: "owner", width: 140, grow: true, text: (r) => r.owner_name ?? "no owner" },
  {
    key: "committed",
    head: "committed",
    width: 104,
    numeric: true,
    value: (r) => r.committed,
    text: (r) => (r.committed === null ? "none" : whole(r.committed)),
  },
  { key: "end", head: "log end", width: 90, numeric: true, value: (r) => r.log_end, text: (r) => whole(r.log_end) },
  {
    key: "to",
    head: "continues at",
    width: 95,
    numeric: true,
    value: (r) => r.to,
    text: (r) => (r.to === null ? "as now" : whole(r.to)),
  },
];

let refresh = null;
// Called by the table of partitions when commands may have changed
export const commandsChanged = () => refresh?.();
const titled = (cells) =>
  cells.length === 1 ? `${cells[0].topic}:${cells[0].number}` : plural(cells.length, "partition");

// The commands in force about the partitions
export const openInForce = (cells) => {
  const name = state.group.group,
    { node: result, twice, button } = statusLine(),
    about = argumentsOf(cells);
  const standing = element("div");
  const found = () => [...new Set(cells.flatMap((cell) => commandsOn(cell.topic, cell.number)))];
  const mine = (command) => argumentsOf(cells.filter((cell) => commandsOn(cell.topic, cell.number).includes(command)));
  const takeBack = (command) => {
    if (command.state === "done") return null;
    if (!(command.kind in ENDS))
      return button(`Withdraw ${command.kind}`, "", async () => {
        await change(name, "commands/remove", { ids: [command.id] });
        return "Withdrawn.";
      });
    const partitions = mine(command),
      body = {
        kind: command.kind,
        arguments: { partitions, ...(command.kind === "skip" ? { offset: command.arguments.offset } : {}) },
      };
    const says = `${called(partitions)}: ${ENDS[command.kind]}${called(command.arguments.partitions) === called(partitions) ? "" : " The command stays for its other partitions."}`;
    return twice(
      `Withdraw ${command.kind}`,
      `Yes, withdraw ${command.kind}`,
      () => says,
      async () => {
        await change(name, "commands/withdraw", body);
        return "Withdrawn.";
      },
    );
  };
  // the result of a seek names the former positions, so another seek can undo it
  const backTo = (command) =>
    command.results.flatMap((result) => {
      const was = / from (\d+)$/.exec(result.what)?.[1],
        partitions = Object.fromEntries(Object.entries(result.partitions).filter(([topic]) => topic in about));
      if (was === undefined || !Object.keys(partitions).length) return [];
      return [
        twice(
          `Seek ${called(partitions)} back to ${was}`,
          "Yes, seek back",
          () => `${called(partitions)}: ${result.what}. Its owner will continue at ${was}.`,
          async () => {
            await change(name, "commands/put", {
              kind: "seek",
              arguments: { partitions, to: was },
              why: `back from ${command.text}`,
            });
            return "Command added.";
          },
        ),
      ];
    });
  let drawn = null;
  const draw = () => {
    const all = found(),
      key = JSON.stringify(all);
    if (key === drawn) return;
    const held = standing.contains(document.activeElement);
    drawn = key;
    standing.replaceChildren(
      ...(all.length
        ? all.map((command) =>
            element(
              "div",
              { class: "row" },
              element(
                "span",
                {},
                element("b", {}, command.kind),
                ` ${words(command)}, by ${command.who} ${ago(command.at, now())}${command.why ? `: ${command.why}` : ""} ` +
                  `(${command.state}${command.state_why ? `: ${command.state_why}` : ""})`,
              ),
              takeBack(command),
              ...backTo(command),
            ),
          )
        : [element("p", { class: "muted" }, "No command about them.")]),
    );
    if (held) (standing.querySelector("button") ?? close).focus();
  };
  refresh = draw;
  draw();
  const close = openDialog(`Commands about ${titled(cells)}`, [credentials(), standing, result], {
    close: () => {
      refresh = null;
    },
  });
};

// Adds a command of one kind about the partitions
export const openPartitionCommand = (kind, cells) => {
  if (kind === "pin") {
    openCommand(kind, { partitions: called(argumentsOf(cells)) });
    return;
  }
  const name = state.group.group,
    { node: result, twice } = statusLine();
  const which = element("input", { name: "record-partitions", value: called(argumentsOf(cells)), spellcheck: "false" });
  const offset = element("input", { type: "number", name: "record-offset", min: "0", step: "1", value: "" });
  const place = choice("record-to", [
    ["earliest", "the first record"],
    ["latest", "the end: only new records"],
    ["offset", "an offset"],
    ["time", "a time"],
  ]);
  const when = element("input", { type: "datetime-local", step: "1", name: "record-when" });
  const why = element("input", { name: "record-why", maxlength: "1000" }),
    hours = element("input", { name: "record-hours", type: "number", min: "0", step: "any", placeholder: "no end" });
  const fields = element("div"),
    shown = element("div");
  const table = new Table({
    id: "record-plan",
    label: "Partitions of the command",
    columns: ROWS,
    key: (r) => `${r.topic}:${r.partition}`,
    empty: "No partition.",
  });
  const pick = () =>
    fields.replaceChildren(
      ...(kind === "skip"
        ? [field("Offset of the record", offset)]
        : kind !== "seek"
          ? []
          : [
              field("Continue at", place),
              ...(place.value === "time"
                ? [field(`Date and time, local time (${Intl.DateTimeFormat().resolvedOptions().timeZone})`, when)]
                : place.value === "offset"
                  ? [field("Offset", offset)]
                  : []),
            ]),
    );
  place.addEventListener("change", pick);
  pick();
  const at = () => {
    if (offset.value === "") throw new Error("enter the offset");
    return Number(offset.value);
  };
  const target = () => {
    if (place.value === "offset") return String(at());
    if (place.value !== "time") return place.value;
    const time = Date.parse(when.value);
    if (Number.isNaN(time)) throw new Error("choose a date and a time");
    return `timestamp:${time}`;
  };
  let given = null;
  const says = async () => {
    given = {
      kind,
      arguments: {
        partitions: partitionsOf(which.value),
        ...(kind === "skip" ? { offset: at() } : kind === "seek" ? { to: target() } : {}),
      },
    };
    const seen = await change(name, "commands/preview", given);
    given = {
      ...given,
      why: why.value,
      ...(hours.value ? { hours: Number(hours.value) } : {}),
      ...(seen.creates ? { create: true } : {}),
    };
    shown.replaceChildren(table.node);
    table.show(seen.partitions);
    return [
      effect(kind, seen.partitions, given.arguments.offset),
      seen.command.state === "pending" && `It has no effect yet: ${seen.command.state_why}.`,
      hours.value
        ? `It ends after ${hours.value} h.`
        : kind === "seek"
          ? "It is executed once."
          : "It stays in force until it is withdrawn.",
      seen.creates && `It creates the topic ${seen.creates}, which stores the commands of this group.`,
    ]
      .filter(Boolean)
      .join(" ");
  };
  const give = twice(capital(kind), `Yes, ${kind}`, says, async () => {
    const done = await change(name, "commands/put", given);
    shown.replaceChildren();
    return `Command ${done.command} is added${done.state_why ? `, but ${done.state}: ${done.state_why}` : ""}. The table of partitions shows it.`;
  });
  openDialog(
    `${capital(kind)} ${titled(cells)}`,
    [
      credentials(),
      element("p", { class: "muted" }, state.hello.commands[kind]),
      field("Partitions", which),
      fields,
      field("Why", why),
      field("Hours", hours, "without a number it stays in force until it is withdrawn"),
      shown,
      give,
      result,
    ],
    { close: () => table.close() },
  );
};
