// Changes to a group; the page shows each one before it makes it. The token stays in the memory of this page.

import { element } from "./dom.js";

let token = "";
const dialog = document.getElementById("dialog");

const ask = async (group, what, body) => {
  const answer = await fetch(`api/groups/${encodeURIComponent(group)}/${what}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error.message);
  return value;
};

const field = (label, input, hint = "") => element("label", {}, label, input, ...(hint ? [element("small", { class: "muted" }, hint)] : []));

export const openActions = (group) => {
  const name = group.group;
  const answer = element("p", { class: "answer", role: "status" });
  const secret = element("input", { type: "password", autocomplete: "off", value: token, name: "token" });
  secret.addEventListener("input", () => { token = secret.value; });
  const to = element("input", { value: "earliest", name: "to", spellcheck: "false" });
  const topics = element("input", { name: "topics", placeholder: "all of the group", spellcheck: "false" });
  const confirm = element("input", { name: "confirm", autocomplete: "off", spellcheck: "false" });
  const plan = element("div", { class: "scroll" });
  const button = (words, kind, work) => {
    const node = element("button", { type: "button", class: kind }, words);
    node.addEventListener("click", async () => {
      answer.className = "answer"; answer.textContent = "…"; node.disabled = true;
      try { answer.textContent = await work(); } catch (error) { answer.className = "answer bad"; answer.textContent = error.message; }
      node.disabled = false;
    });
    return node;
  };
  const body = () => ({ to: to.value.trim(), topics: topics.value.split(",").map((topic) => topic.trim()).filter(Boolean) });
  const show = (reset) => {
    const rows = reset.partitions.slice(0, 500).map((each) => element("tr", {}, ...[each.topic, each.partition, each.from ?? "–", each.to].map((value) => element("td", {}, String(value)))));
    plan.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...["topic", "partition", "committed", "new"].map((head) => element("th", {}, head)))), element("tbody", {}, ...rows)));
  };
  dialog.replaceChildren(
    element("h2", { id: "dialog-title" }, `Change ${name}`),
    element("p", { class: "muted" }, "Every change needs the token of the server."),
    field("Token", secret),
    element("h3", {}, "Recompute the assignment"),
    element("p", { class: "muted" }, "Partitions that the allocator function leaves where they are do not stop. It helps when the function heeds load or racks, which change without anybody joining."),
    button("Rebalance", "", async () => { await ask(name, "rebalance", {}); return "Requested: the next generation will follow."; }),
    element("h3", {}, "Pause and resume"),
    element("p", { class: "muted" }, "Members that follow the group's setting (SwitchingConsumer) finish what they have, commit, and leave until it is resumed. Others go on, and have to be stopped where they run."),
    element("div", { class: "row" },
      button("Pause", "", async () => { await ask(name, "pause", {}); return "Requested: its members will leave."; }),
      button("Resume", "", async () => { await ask(name, "resume", {}); return "Requested: its members will join."; })),
    element("h3", {}, "Reset offsets"),
    element("p", { class: "muted" }, "Only while the group has no members: members would overwrite these offsets."),
    field("To", to, "earliest, latest, timestamp:MILLISECONDS, or an offset"),
    field("Topics, with commas", topics),
    button("Show the plan", "", async () => { const found = await ask(name, "offsets/reset", body()); show(found); return `${found.partitions.length} partitions; nothing was changed.${found.members_alive.length ? ` It would be refused: ${found.members_alive.length} members.` : ""}`; }),
    plan,
    field(`To confirm, enter the name of the group: ${name}`, confirm),
    element("div", { class: "row" },
      button("Reset offsets", "danger", async () => { const done = await ask(name, "offsets/reset", { ...body(), confirm: confirm.value }); show(done); return done.executed ? `${done.partitions.length} offsets were committed.` : "Nothing was changed."; }),
      (() => { const close = element("button", { type: "button" }, "Close"); close.addEventListener("click", () => dialog.close()); return close; })()),
    answer,
  );
  dialog.showModal();
};
