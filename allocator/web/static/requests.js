// Requests of an operator: the token, the response, and buttons that show a preview first. The token stays in this tab.

import { element } from "./dom.js";
import { inKafka, state } from "./state.js";

const KEY = "token";
let token = sessionStorage.getItem(KEY) ?? "";

// changes that only the leader of a group in ZooKeeper executes
const OF_LEADERS = ["rebalance", "pause", "resume", "plan"];
export const offers = (what) => state.hello?.actions.includes(what) === true && !(inKafka() && OF_LEADERS.includes(what));

export const authorization = () => (token ? { Authorization: `Bearer ${token}` } : {});

const request = async (path, options) => {
  const response = await fetch(`api/${path}`, { ...options, headers: { ...options.headers, ...authorization() } });
  const value = await response.json();
  if (!response.ok) throw new Error(value.error.message);
  return value;
};
export const read = (path) => request(path, {});
export const post = (path, body) => request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
export const change = (group, what, body) => post(`groups/${encodeURIComponent(group)}/${what}`, body);

export const field = (label, input, hint = "") => element("label", {}, label, input, hint ? element("small", { class: "muted" }, hint) : null);
export const choice = (name, options) => element("select", { name }, ...options.map(([value, words]) => element("option", { value }, words)));

export const secret = () => {
  const node = element("input", { type: "password", autocomplete: "off", value: token, name: "token" });
  node.addEventListener("input", () => { token = node.value; sessionStorage.setItem(KEY, token); });
  return node;
};
export const credentials = (words = "Every change needs the token of the server, and is logged.") => {
  if (state.hello?.needs_token === false) return element("p", { class: "muted" }, `You are ${state.hello.user}. Each change is logged with your name.`);
  return element("form", { onsubmit: (event) => event.preventDefault() }, element("p", { class: "muted" }, words), field("Token", secret()));
};

// `node` shows the response of `tell`, or its error; `button` creates a button that reports its result there
export const statusLine = () => {
  const node = element("p", { class: "result", role: "status" });
  const fail = (error) => { node.className = "result bad"; node.textContent = error.message; };
  const report = async (work, from = null) => {
    node.className = "result"; node.textContent = "…"; if (from) from.disabled = true;
    try { node.textContent = await work(); } catch (error) { fail(error); }
    if (from) { from.disabled = false; if (from.isConnected) from.focus(); }
  };
  const button = (words, kind, work, attributes = {}) => element("button", { type: "button", class: kind, onclick: (event) => report(work, event.currentTarget), ...attributes }, words);
  // the first click shows a preview, the second one executes it. `says()` may throw; `yes` is the label for the second click
  const twice = (words, yes, says, work) => {
    const box = element("div", { class: "step" }), first = element("button", { type: "button" }, words);
    const close = () => { box.replaceChildren(first); if (box.isConnected) first.focus(); };
    first.addEventListener("click", () => {
      let text;
      try { text = says(); } catch (error) { fail(error); return; }
      const sure = button(typeof yes === "function" ? yes() : yes, "danger", async () => { const done = await work(); close(); return done; });
      box.replaceChildren(element("p", {}, text), sure, " ", element("button", { type: "button", onclick: close }, "No"));
      sure.focus();
    });
    box.append(first);
    return box;
  };
  return { node, report, fail, button, twice };
};

// Shows a dialog, and calls `close` when it is closed. The focus returns to the former element, or to `after`
const dialog = document.getElementById("dialog");
export const openDialog = (title, children, { close = null, after = "#act" } = {}) => {
  const before = document.activeElement;
  const done = element("button", { type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(element("h2", { id: "dialog-title" }, title), ...children, element("div", { class: "row" }, done));
  dialog.addEventListener("close", () => { close?.(); (before?.isConnected && before !== document.body ? before : document.querySelector(after))?.focus(); }, { once: true });
  dialog.showModal();
  return done;
};
export const part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);
