// The findings of a group, worst first. Infos are folded. A dismissed finding stays hidden in this browser.

import { badge, element } from "./dom.js";

const STORE = "allocator.dismissed";
const dismissed = () => {
  try {
    return new Set(JSON.parse(localStorage.getItem(STORE) ?? "[]"));
  } catch {
    return new Set();
  }
};
const keep = (keys) => {
  try {
    if (keys.size) localStorage.setItem(STORE, JSON.stringify([...keys]));
    else localStorage.removeItem(STORE);
  } catch {
    /* this browser keeps nothing */
  }
};
const keyOf = (group, finding) => `${group}\n${finding.id}\n${finding.where}`;
const KIND = { critical: "bad", warning: "busy" };

export const findings = (group) => {
  const list = element("ul"),
    calm = element("p"),
    more = element("details", {}, element("summary"), element("ul")),
    again = element("button", { type: "button", class: "quiet" });
  const node = element(
    "section",
    { id: "findings", "aria-labelledby": "findings-title" },
    element("div", { class: "title" }, element("h3", { id: "findings-title" }, "Findings"), calm),
    list,
    more,
    again,
  );
  let all = null;
  const item = (finding) => {
    const hide = element(
      "button",
      { type: "button", class: "quiet", "aria-label": `Dismiss: ${finding.what}` },
      "Dismiss",
    );
    hide.addEventListener("click", () => {
      const keys = dismissed();
      keys.add(keyOf(group, finding));
      keep(keys);
      update(all);
      (node.querySelector("button") ?? document.querySelector("main h2"))?.focus();
    });
    const copy = finding.command
      ? element(
          "button",
          { type: "button", class: "quiet", "aria-label": `Copy the command: ${finding.command}` },
          "Copy",
        )
      : null;
    copy?.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(finding.command);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(copy.previousSibling);
      }
    });
    return element(
      "li",
      { "data-finding": finding.id },
      element(
        "div",
        { class: "what" },
        badge(finding.severity, KIND[finding.severity] ?? "quiet"),
        element("span", {}, finding.what),
        finding.severity === "critical" ? null : hide,
      ),
      element(
        "p",
        { class: "remedy" },
        ...[
          ["where", finding.where],
          ["why", finding.why],
          ["do", finding.do],
        ]
          .filter(([, words]) => words)
          .map(([head, words]) =>
            element(
              "span",
              { class: head },
              element("b", {}, `${{ where: "Where", why: "Why it matters", do: "What to do" }[head]}: `),
              `${words} `,
            ),
          ),
        ...(finding.command ? [element("code", {}, finding.command), copy] : []),
      ),
    );
  };
  again.addEventListener("click", () => {
    const keys = dismissed();
    for (const each of all) keys.delete(keyOf(group, each));
    keep(keys);
    update(all);
    node.querySelector("summary, button")?.focus();
  });
  const update = (found) => {
    all = found;
    if (found === null) {
      calm.replaceChildren(element("span", { class: "muted" }, "Not known yet."));
      list.hidden = more.hidden = again.hidden = true;
      return;
    }
    const away = dismissed(),
      shown = found.filter((each) => each.severity === "critical" || !away.has(keyOf(group, each)));
    const loud = shown.filter((each) => each.severity !== "info"),
      infos = shown.filter((each) => each.severity === "info");
    node.className = loud.some((each) => each.severity === "critical") ? "" : loud.length ? "warned" : "none";
    calm.replaceChildren(...(loud.length ? [] : [badge("good", "good"), " No warnings."]));
    list.replaceChildren(...loud.map(item));
    list.hidden = !loud.length;
    more.hidden = !infos.length;
    more.querySelector("summary").textContent =
      infos.length === 1 ? "1 note that needs no action" : `${infos.length} notes that need no action`;
    more.querySelector("ul").replaceChildren(...infos.map(item));
    again.hidden = shown.length === found.length;
    again.textContent = `Show ${found.length - shown.length} dismissed`;
  };
  return { node, update };
};
