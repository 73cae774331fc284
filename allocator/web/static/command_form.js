// The form for an operator command to the leader: its kind and arguments. The dialogs of commands and the plans use it.

import { choice, field } from "./requests.js";
import { element } from "./dom.js";
import { state } from "./state.js";

// "orders:0-3,7 payments:1" -> {"orders": "0-3,7", "payments": "1"}
export const partitionsOf = (text) =>
  Object.fromEntries(
    text
      .trim()
      .split(/\s+/)
      .filter(Boolean)
      .map((each) => {
        const at = each.lastIndexOf(":");
        if (at < 1) throw new Error(`${each}: write topic:numbers, such as orders:0-3`);
        return [each.slice(0, at), each.slice(at + 1)];
      }),
  );

// Arguments as `allocator group canary` writes them: an existing command keeps its known and promoted members
const canary = (group, count) => {
  if (count === null) throw new Error("enter how many partitions each new member gets");
  const present = state.commands.find((each) => each.kind === "canary" && each.state !== "expired");
  const known = [...new Set(group.members.map((each) => each.name.replace(/#[^#]*$/, "")))].sort();
  return { known, promoted: [], ...present?.arguments, count };
};

// `preset`: arguments that are known already, and have no field
export const commandForm = (group, preset = {}) => {
  const names = group.members.map((each) => [each.name, each.name]),
    racks = [...new Set(group.members.map((each) => each.rack).filter(Boolean))];
  const one = choice("command-member", names),
    oneField = (words) => (preset.member ? [] : [field(words, one)]),
    second = choice("command-new", names);
  const spots = [
    ...group.members.map((each) => [JSON.stringify({ member: each.name }), each.name]),
    ...racks.map((rack) => [JSON.stringify({ rack }), `rack ${rack}`]),
  ];
  const spot = choice("command-place", spots),
    which = element("input", {
      name: "command-partitions",
      placeholder: "orders:0-3,7 payments:1",
      spellcheck: "false",
    });
  const atOnce = element("input", { name: "command-at-once", type: "number", min: "1" }),
    perMinute = element("input", { name: "command-per-minute", type: "number", min: "1" });
  const each = element("input", { name: "command-count", type: "number", min: "0", step: "1" });
  if (preset.member) one.value = preset.member;
  if (preset.partitions) which.value = preset.partitions;
  const count = (input) => (input.value === "" ? null : Number(input.value));
  // kind -> its arguments, and the fields to enter them
  const COMMANDS = {
    cordon: [() => ({ member: one.value }), () => oneField("Member")],
    evacuate: [() => ({ member: one.value }), () => oneField("Member")],
    swap: [
      () => ({ old: one.value, new: second.value }),
      () => [...oneField("From member"), field("To member", second)],
    ],
    pin: [
      () => ({ partitions: partitionsOf(which.value), place: JSON.parse(spot.value) }),
      () => [field("Partitions", which), field("Place", spot)],
    ],
    freeze: [() => ({}), () => []],
    budget: [
      () => ({ at_once: count(atOnce), per_minute: count(perMinute) }),
      () => [field("At once", atOnce), field("Per minute", perMinute)],
    ],
    canary: [() => canary(group, count(each)), () => [field("Partitions of each new member", each)]],
  };
  return {
    kinds: Object.keys(COMMANDS),
    fields: (kind) => COMMANDS[kind][1](),
    command: (kind) => ({ kind, arguments: COMMANDS[kind][0]() }),
  };
};
