// The log of changes.

import { statusLine, authorization, credentials, read } from "./requests.js";
import { element, link } from "./dom.js";
import { moment, plural } from "./format.js";
import { build } from "./route.js";
import { state } from "./state.js";
import { Table } from "./table.js";

const CHANGES = [
  { key: "when", head: "when", width: 150, value: (r) => r.at, text: (r) => moment(r.at) },
  { key: "who", head: "user", width: 100, text: (r) => r.who ?? "unknown" },
  {
    key: "group",
    head: "group",
    width: 110,
    text: (r) => r.group ?? "all",
    cell: (r) => (!r.group ? (r.group ?? "all") : link(build({ view: "summary", group: r.group }), r.group)),
  },
  { key: "what", head: "change", width: 130, text: (r) => r.text },
  { key: "outcome", head: "outcome", width: 160, grow: true, text: (r) => r.detail.outcome ?? "unknown" },
  { key: "address", head: "address", width: 110, text: (r) => r.address ?? "unknown" },
  { key: "request", head: "request", width: 200, grow: true, text: (r) => JSON.stringify(r.detail.request ?? {}) },
];
export const audit = (route, query) => {
  const table = new Table({
    id: "changes",
    label: "Changes",
    columns: CHANGES,
    key: (r) => `${r.at} ${r.text}`,
    sort: route.query.sort ?? "-when",
    empty: "No change was requested.",
    onsort: (sort) => query({ sort }),
  });
  const { node: result, report, button } = statusLine();
  const load = async () => {
    const { changes } = await read("audit");
    table.show(changes);
    found.hidden = false;
    return `${plural(changes.length, "change")}.`;
  };
  const found = element("div", { hidden: true }, table.node),
    form = element("div");
  let shown = false;
  // show the log at once to a user who is logged in, or whose token this page has
  const update = () => {
    if (shown || !state.hello) return;
    shown = true;
    const { role, needs_token: byToken, actions } = state.hello;
    if (!byToken && role !== "operator") result.textContent = "Only operators can see the changes.";
    else if (byToken && !actions.length)
      result.textContent = "This server is read-only: it was started without a token, so it shows no changes.";
    else {
      form.replaceChildren(
        credentials("The changes have names of users and addresses, so they need the token of the server."),
        button("Show the changes", "", load),
      );
      if (!byToken || authorization().Authorization) report(load);
    }
  };
  return {
    node: element("section", { class: "view" }, element("h2", { tabindex: "-1" }, "Changes"), form, result, found),
    update,
    close: () => table.close(),
    title: () => "Changes",
  };
};
