// Requests of an operator: the token, the response, and buttons that show a preview first. The token stays in this tab.

import { element } from "./dom.js";
import { inKafka, state } from "./state.js";

export const capital = (words) => `${words[0].toUpperCase()}${words.slice(1)}`;

const KEY = "token";
let token = sessionStorage.getItem(KEY) ?? "";

// changes that only the leader of a group in ZooKeeper executes
const OF_LEADERS = ["rebalance", "pause", "resume", "plan"];
export const offers = (what) =>
  state.hello?.actions.includes(what) === true && !(inKafka() && OF_LEADERS.includes(what));

export const authorization = () => (token ? { Authorization: `Bearer ${token}` } : {});

const request = async (path, options) => {
  const response = await fetch(`api/${path}`, { ...options, headers: { ...options.headers, ...authorization() } });
  const value = await response.json();
  if (!response.ok) throw new Error(value.error.message);
  return value;
};
export const read = (path) => request(path, {});
export const post = (path, body) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
export const change = (group, what, body) => post(`groups/${encodeURIComponent(group)}/${what}`, body);

export const field = (label, input, hint = "") =>
  element("label", {}, label, input, hint ? element("small", { class: "muted" }, hint) : null);
export const choice = (name, options) =>
  element("select", { name }, ...options.map(([value, words]) => element("option", { value }, words)));

export const secret = () => {
  const node = element("input", { type: "password", autocomplete: "off", name: "token" });
  node.value = token; // an attribute would be part of the page's source
  node.addEventListener("input", () => {
    token = node.value;
    sessionStorage.setItem(KEY, token);
  });
  return node;
};
export const credentials = (words = "Every change needs the token of the server, and is logged.") => {
  if (state.hello?.needs_token === false)
    return element("p", { class: "muted" }, `You are ${state.hello.user}. Each change is logged with your name.`);
  return element(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    element("p", { class: "muted" }, words),
    field("Token", secret()),
  );
};

// `node` shows the response of `tell`, or its error; `button` creates a button that reports its result there
export const statusLine = () => {
  const node = element("p", { class: "result", role: "status" });
  const fail = (error) => {
    node.className = "result bad";
    node.textContent = error.message;
  };
  const report = async (work, from = null) => {
    node.className = "result";
    node.textContent = "…";
    if (from) from.disabled = true;
    try {
      node.textContent = await work();
    } catch (error) {
      fail(error);
    }
    if (from) {
      from.disabled = false;
      if (from.isConnected) from.focus();
    }
  };
  const button = (words, kind, work, attributes = {}) =>
    element(
      "button",
      { type: "button", class: kind, onclick: (event) => report(work, event.currentTarget), ...attributes },
      words,
    );
  // the first click shows a preview beside the button of the second one, which executes it. `says()` may throw; `yes` is its label
  const twice = (words, yes, says, work) => {
    const box = element("div", { class: "step" }),
      first = element("button", { type: "button" }, words);
    const close = () => {
      box.replaceChildren(first);
      if (box.isConnected) first.focus();
    };
    // what was shown is no longer what the inputs say
    const outdated = (event) => {
      if (!/confirm|token/.test(event.target.name)) box.replaceChildren(first);
    };
    first.addEventListener("click", () =>
      report(async () => {
        const text = await says();
        const sure = button(typeof yes === "function" ? yes() : yes, "danger", async () => {
          const done = await work();
          close();
          return done;
        });
        box.replaceChildren(
          element("p", {}, text),
          sure,
          " ",
          element("button", { type: "button", onclick: close }, "No"),
        );
        sure.focus();
        box.closest("dialog, section")?.addEventListener("input", outdated);
        return "";
      }, first),
    );
    box.append(first);
    return box;
  };
  return { node, report, fail, button, twice };
};

// Shows a dialog, and calls `close` when it is closed. The focus returns to the button that opened it
const dialog = document.getElementById("dialog");
let ended = null;
// the event of the browser waits for a frame, in which another dialog may be open already
const end = () => {
  const work = ended;
  ended = null;
  work?.();
};
dialog.addEventListener("close", () => {
  if (!dialog.open) end();
});
export const closeDialog = () => {
  dialog.close();
  end();
};
// the view may have drawn the button again meanwhile
const again = (node) =>
  node.isConnected
    ? node
    : [...document.querySelectorAll("main button")].find(
        (each) => each.textContent === node.textContent && each.ariaLabel === node.ariaLabel,
      );
export const openDialog = (title, children, { close = null } = {}) => {
  const before = document.activeElement,
    done = element("button", { type: "button", onclick: closeDialog }, "Close");
  dialog.replaceChildren(
    element("h2", { id: "dialog-title" }, title),
    ...children,
    element("div", { class: "row" }, done),
  );
  ended = () => {
    close?.();
    again(before)?.focus();
    if (document.activeElement === document.body) document.getElementById("main").focus();
  };
  dialog.showModal();
  return done;
};
// A button that opens a dialog. Not each browser gives the focus to a button that is clicked
export const opener = (words, open, attributes = {}) =>
  element(
    "button",
    {
      type: "button",
      onclick: (event) => {
        event.currentTarget.focus();
        open();
      },
      ...attributes,
    },
    ...[words].flat(),
  );
export const part = (title, ...children) => element("section", {}, element("h3", {}, title), ...children);
