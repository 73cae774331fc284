// The operator commands of a group, with their states.

import { badge, element } from "./dom.js";
import { ago, expand, moment, plural } from "./format.js";
import { openCommand, openWithdrawal } from "./act.js";
import { capital, offers, opener } from "./requests.js";
import { inKafka, now, state } from "./state.js";
import { Table } from "./table.js";

export const KIND = { kept: "good", given: "good", done: "good", waiting: "busy", pending: "busy", "not kept": "bad" };
const place = (value) =>
  Object.entries(value)
    .map(([what, name]) => `${what} ${name}`)
    .join(", ");
const partitions = (value) =>
  Object.entries(value)
    .map(([topic, ranges]) => `${topic}:${ranges}`)
    .join(", ");
// {"member": "a"} -> "member a"
export const words = (command) =>
  Object.entries(command.arguments)
    .map(([name, value]) => {
      if (name === "partitions") return partitions(value);
      if (name === "known") return `${plural(value.length, "member")} before it`;
      if (name === "place") return `at ${place(value)}`;
      if (Array.isArray(value)) return value.length ? `${name} ${value.join(", ")}` : "";
      return value === null ? "" : `${name.replace("_", " ")} ${value}`;
    })
    .filter(Boolean)
    .join(", ");

// The commands about one partition: those in force, and seeks that are done
let indexed = null,
  index = new Map();
export const commandsOn = (topic, number) => {
  if (indexed !== state.commands) {
    indexed = state.commands;
    index = new Map();
    for (const command of state.commands) {
      if (command.state === "expired") continue;
      for (const [name, ranges] of Object.entries(command.arguments.partitions ?? {})) {
        for (const each of expand(ranges)) {
          const key = `${name}:${each}`;
          index.set(key, [...(index.get(key) ?? []), command]);
        }
      }
    }
  }
  return index.get(`${topic}:${number}`) ?? [];
};
const SHORT = {
  pause: () => "paused",
  quarantine: () => "quarantined",
  skip: (o) => `skips ${o.arguments.offset}`,
  seek: (o) => `seeks ${o.arguments.to}`,
  pin: () => "pinned",
};
export const inForce = (command) => command.state !== "done";
export const short = (command) => SHORT[command.kind]?.(command) ?? command.kind;

// Whether an operator may add commands to a leader
export const leads = () => offers("commands/put") && !inKafka();
const ends = (command) => leads() && !["expired", "done"].includes(command.state);
export const commands = () => {
  const columns = [
    {
      key: "kind",
      head: "command",
      width: 200,
      grow: true,
      value: (o) => o.kind,
      text: (o) => `${o.kind} ${words(o)}`,
      cell: (o) => [element("b", {}, o.kind), ` ${words(o)}`],
    },
    {
      key: "state",
      head: "state",
      width: 150,
      grow: true,
      text: (o) => `${o.state} ${o.state_why}`,
      cell: (o) => [badge(o.state, KIND[o.state] ?? "quiet"), ` ${o.state_why}`],
    },
    { key: "who", head: "by", width: 90, text: (o) => o.who },
    { key: "at", head: "when", width: 95, value: (o) => o.at, text: (o) => ago(o.at, now()) },
    { key: "why", head: "why", width: 180, grow: true, text: (o) => o.why || "no reason given" },
    {
      key: "expires",
      head: "ends",
      width: 150,
      value: (o) => o.expires,
      text: (o) => (o.expires === null ? "no end" : moment(o.expires)),
    },
    {
      key: "end",
      head: "withdraw",
      width: 115,
      text: (o) => (ends(o) ? "Withdraw…" : ""),
      cell: (o) =>
        ends(o)
          ? opener("Withdraw…", () => openWithdrawal(o), {
              class: "quiet",
              "aria-label": `Withdraw ${o.kind} ${words(o)}`,
            })
          : "",
    },
  ];
  const table = new Table({ id: "commands", label: "Commands", columns, key: (o) => o.id, empty: "No commands." });
  const change = element(
    "div",
    { class: "acts" },
    ...["freeze", "budget", "canary"].map((kind) => opener(`${capital(kind)}…`, () => openCommand(kind))),
  );
  const node = element(
    "section",
    { id: "commands-section", "aria-labelledby": "commands-title" },
    element(
      "div",
      { class: "title" },
      element("h3", { id: "commands-title" }, "Commands"),
      table.nothing,
      element("span", { class: "spacer" }),
      change,
    ),
    table.node,
  );
  const update = () => {
    change.hidden = !leads();
    node.hidden = !state.commands.length && change.hidden;
    table.node.hidden = !state.commands.length;
    table.show(state.commands);
  };
  return { node, update, close: () => table.close() };
};
