// The orders of operators: what a group was told to do, and what became of it.

import { badge, element } from "./dom.js";
import { ago, moment } from "./format.js";
import { now, state } from "./state.js";
import { Table } from "./table.js";

const KIND = { kept: "good", done: "good", waiting: "busy", pending: "busy", "not kept": "bad", faulty: "bad" };
const place = (value) => Object.entries(value).map(([what, name]) => `${what} ${name}`).join(", ");
const partitions = (value) => Object.entries(value).map(([topic, ranges]) => `${topic}:${ranges}`).join(", ");
// {"member": "a"} -> "member a"
export const words = (order) => Object.entries(order.arguments).map(([name, value]) => {
  if (name === "partitions") return partitions(value);
  if (name === "place") return `at ${place(value)}`;
  if (name === "places") return value.length ? `away from ${value.map(place).join(" and ")}` : "away from every member";
  if (Array.isArray(value)) return value.length ? `${name} ${value.join(", ")}` : "";
  return value === null ? "" : `${name.replace("_", " ")} ${value}`;
}).filter(Boolean).join(", ");

export const orders = (open) => {
  const columns = [
    { key: "kind", head: "order", width: 210, value: (o) => o.kind, text: (o) => `${o.kind} ${words(o)}`, cell: (o) => [element("b", {}, o.kind), ` ${words(o)}`] },
    { key: "state", head: "state", width: 150, rank: 5, text: (o) => `${o.state} ${o.state_why}`, cell: (o) => [badge(o.state, KIND[o.state] ?? "quiet"), ` ${o.state_why}`] },
    { key: "who", head: "by", width: 110, rank: 2, text: (o) => o.who },
    { key: "at", head: "when", width: 100, rank: 3, value: (o) => o.at, text: (o) => ago(o.at, now()) },
    { key: "why", head: "why", width: 180, rank: 1, text: (o) => o.why || "no reason given" },
    { key: "expires", head: "ends", width: 110, rank: 4, value: (o) => o.expires, text: (o) => (o.expires === null ? "no end" : moment(o.expires)) },
  ];
  const table = new Table({ id: "orders", label: "Orders", columns, key: (o) => o.id, empty: "No orders." });
  const change = element("button", { type: "button", onclick: open }, "Give or take back orders…");
  const node = element("section", { id: "orders-section", "aria-labelledby": "orders-title" }, element("h3", { id: "orders-title" }, "Orders"), table.node, change);
  const update = () => { change.hidden = !state.hello?.actions.includes("orders/put"); node.hidden = !state.orders.length && change.hidden; table.show(state.orders); };
  return { node, update, close: () => table.close() };
};
