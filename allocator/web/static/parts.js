// Elements that several views show: titles, figures, states, members with their colour and texture.

import { badge, element, link } from "./dom.js";
import { paint } from "./draw.js";
import { moment } from "./format.js";
import { build } from "./route.js";
import { looks, nameOf, state } from "./state.js";

export const to = (view, item = null, query = {}) => build({ view, group: state.route.group, item, query });

export const phaseOf = (group) => (group.paused ? "paused" : group.phase);
export const phaseKind = (phase) => ({ stable: "good", rebalancing: "busy", paused: "busy" })[phase] ?? "quiet";
export const phaseBadge = (group, current = true) =>
  badge(phaseOf(group), current ? phaseKind(phaseOf(group)) : "quiet");

export const findingBadges = (counts) =>
  [
    ["critical", "bad"],
    ["warning", "busy"],
  ]
    .filter(([severity]) => counts[severity])
    .map(([severity, kind]) => badge(`${counts[severity]} ${severity}`, kind));

// The colour, texture and letter of a member
export const swatch = (id) => {
  const canvas = element("canvas", { class: "swatch", width: 52, height: 40, "aria-hidden": "true" }),
    look = looks.of(id),
    c = canvas.getContext("2d");
  paint(c, 0, 0, 52, look, 40);
  c.fillStyle = look.fill;
  c.fillRect(13, 9, 26, 22);
  c.fillStyle = look.ink;
  c.font = "600 20px system-ui, sans-serif";
  c.textAlign = "center";
  c.textBaseline = "middle";
  c.fillText(look.tag, 26, 21);
  return canvas;
};
export const memberLink = (id) => link(to("member", id), nameOf(id), { class: "member" });
export const owner = (id) =>
  id === null
    ? element("span", { class: "muted" }, "no owner")
    : element("span", { class: "owner" }, swatch(id), memberLink(id));

const LONG = 11; // characters of a value that take the place of two figures
export const figures = (entries) =>
  element(
    "dl",
    { class: "figures" },
    ...entries
      .filter(Boolean)
      .map(([what, value, bad]) =>
        element(
          "div",
          { class: `${bad ? "bad" : ""}${value.length > LONG ? " long" : ""}` },
          element("dt", {}, what),
          element("dd", {}, value),
        ),
      ),
  );

// `beside` is shown in the line of the title
export const panel = (title, beside, ...children) => {
  const id = `s-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return element(
    "section",
    { "aria-labelledby": id },
    element("div", { class: "title" }, element("h3", { id }, title), ...beside),
    ...children,
  );
};
export const section = (title, ...children) => panel(title, [], ...children);
export const field = (label, input, kind = "") =>
  element("label", { class: `field ${kind}` }, element("span", {}, label), input);
export const check = (input, words) => element("label", { class: "check" }, input, element("span", {}, words));
export const choice = (name, options, value, change) => {
  const node = element(
    "select",
    { name },
    ...options.map(([key, words]) => element("option", { value: key, selected: key === value }, words)),
  );
  node.addEventListener("change", () => change(node.value));
  return node;
};
export const search = (name, value, change, hint) => {
  const node = element("input", {
    type: "search",
    name,
    value,
    placeholder: hint,
    spellcheck: "false",
    autocomplete: "off",
  });
  node.addEventListener("input", () => change(node.value));
  return node;
};

// The filters above a table: a search, and `choices` by name. The address keeps them; `update` is called after a change
export const filterRow = (route, query, update, hint, choices = {}) => {
  const change = (part) => {
    Object.assign(route.query, part);
    query(part);
    update();
  };
  const chosen = Object.entries(choices).map(([name, [words, options]]) =>
    field(
      words,
      choice(name, options, route.query[name] ?? "", (value) => change({ [name]: value })),
    ),
  );
  return element(
    "div",
    { class: "filters" },
    field(
      "Search",
      search("q", route.query.q ?? "", (q) => change({ q }), hint),
    ),
    ...chosen,
  );
};

// The column of a table of rebalances that leads to each
export const WHEN = {
  key: "when",
  head: "when",
  width: 150,
  value: (r) => r.began,
  text: (r) => moment(r.began),
  cell: (r) => link(to("rebalance", r.id), moment(r.began)),
};
