// The dead letters of a topic: search by error, topic and time, show one, write back or discard after a preview.

import {
  closeDialog,
  statusLine,
  credentials,
  field as line,
  offers,
  openDialog,
  part,
  post,
  read,
} from "./requests.js";
import { element } from "./dom.js";
import { moment, plural, whole } from "./format.js";
import { check, field, search } from "./parts.js";
import { Table } from "./table.js";

const path = (topic, what) => `deadletters/${encodeURIComponent(topic)}/${what}`;
const place = (r) => (r.topic === null ? "unknown" : `${r.topic}:${r.partition}`);
const written = (r) => moment(r.timestamp_ms === null ? null : r.timestamp_ms / 1000);
const settled = (r) =>
  r.settled === null
    ? "no"
    : `${r.settled.action} by ${r.settled.by}${r.settled.reason ? `: ${r.settled.reason}` : ""}`;
const REFUSED = 5; // reasons shown of one response

const columns = (open) => [
  {
    key: "letter",
    head: "letter",
    width: 70,
    value: (r) => r.letter,
    text: (r) => r.letter,
    cell: (r) =>
      open
        ? element(
            "button",
            { type: "button", class: "quiet", "aria-label": `Letter ${r.letter}`, onclick: () => open(r) },
            r.letter,
          )
        : r.letter,
  },
  { key: "written", head: "written", width: 150, value: (r) => r.timestamp_ms, text: written },
  { key: "from", head: "from", width: 120, text: place },
  { key: "offset", head: "offset", width: 80, numeric: true, value: (r) => r.offset, text: (r) => whole(r.offset) },
  {
    key: "attempts",
    head: "attempts",
    width: 90,
    numeric: true,
    value: (r) => r.attempts,
    text: (r) => whole(r.attempts),
  },
  {
    key: "redrives",
    head: "redrives",
    width: 90,
    numeric: true,
    value: (r) => r.redrives,
    text: (r) => whole(r.redrives),
  },
  { key: "error", head: "error", width: 240, grow: true, text: (r) => r.error || "unknown" },
  { key: "settled", head: "settled", width: 120, text: settled },
];
const time = (input, words) => {
  if (!input.value) return "";
  const at = Date.parse(input.value);
  if (Number.isNaN(at)) throw new Error(`${words} is no date and time`);
  return new Date(at).toISOString();
};

export const letters = (route, query) => {
  const { node: result, report, button } = statusLine();
  const given = route.query,
    topics = element("datalist", { id: "letter-topics" });
  const topic = search("topic", given.topic ?? "", () => forget(), "orders.dead"),
    error = search("error", given.error ?? "", () => forget(), "part of the error"),
    from = search("from", given.from ?? "", () => forget(), "topic of the record");
  topic.setAttribute("list", "letter-topics");
  const since = element("input", { type: "datetime-local", step: "1", name: "since", value: given.since ?? "" }),
    until = element("input", { type: "datetime-local", step: "1", name: "until", value: given.until ?? "" });
  const all = element("input", { type: "checkbox", name: "settled", checked: given.settled === "yes" });
  for (const input of [since, until, all]) input.addEventListener("change", () => forget());
  const table = new Table({
    id: "letters",
    label: "Dead letters",
    columns: columns((letter) => show(letter)),
    key: (r) => r.letter,
    sort: given.sort ?? "",
    empty: "No letter matches.",
    onsort: (sort) => query({ sort }),
  });
  let listed = null;
  const filter = () =>
    Object.fromEntries(
      Object.entries({
        error: error.value.trim(),
        from_topic: from.value.trim(),
        since: time(since, "since"),
        until: time(until, "until"),
      }).filter(([, value]) => value),
    );
  const named = () => {
    const name = topic.value.trim();
    if (!name) throw new Error("enter the topic of the dead letters");
    return name;
  };
  const settle = element("div", { class: "filters", hidden: true });
  const forget = () => {
    listed = null;
    settle.hidden = true;
    found.hidden = true;
  };
  const list = async () => {
    const name = named(),
      body = { ...filter(), ...(all.checked ? { settled: true } : {}) };
    query({
      topic: name,
      error: error.value.trim(),
      from: from.value.trim(),
      since: since.value,
      until: until.value,
      settled: all.checked ? "yes" : "",
    });
    const got = await post(path(name, "list"), body);
    listed = name;
    found.hidden = false;
    settle.hidden = !got.letters.some((each) => each.settled === null);
    table.show(got.letters);
    return `${plural(got.count, "letter")}${got.count > got.letters.length ? `, of which the first ${whole(got.letters.length)} are below` : ""}.`;
  };
  const listButton = button("List the letters", "", list);

  // -- one letter ------------------------------------------------------------------------------------------------
  const show = (letter) =>
    report(async () => {
      const name = listed,
        got = await post(path(name, "show"), { letter: letter.letter });
      const facts = [
        ["from", got.topic === null ? "unknown" : `${place(got)} at ${whole(got.offset)}`],
        ["written", written(got)],
        ["group", got.group || "unknown"],
        ["error", got.error || "unknown"],
        ["attempts", whole(got.attempts)],
        ["redrives", whole(got.redrives)],
        ["settled", settled(got)],
      ];
      const box = (label, text) => element("pre", { tabindex: "0", role: "region", "aria-label": label }, text),
        record = got.record;
      const data = (label, each) =>
        box(label, each.format === "null" ? "null" : `${each.text}${each.cut ? " … (cut)" : ""}`);
      const headers =
        record &&
        element(
          "table",
          { class: "plain" },
          element(
            "thead",
            {},
            element("tr", {}, element("th", { scope: "col" }, "header"), element("th", { scope: "col" }, "value")),
          ),
          element(
            "tbody",
            {},
            ...record.headers.map((each) =>
              element(
                "tr",
                {},
                element("th", { scope: "row" }, each.name),
                element("td", {}, each.format === "null" ? "null" : each.text),
              ),
            ),
          ),
        );
      const contents =
        record === null
          ? [element("p", { class: "muted" }, "This server shows no contents of records.")]
          : [
              part(`Key (${record.key.format})`, data("Key", record.key)),
              part(`Value (${record.value.format})`, data("Value", record.value)),
              part(
                "Headers",
                element("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Headers" }, headers),
              ),
            ];
      openDialog(`Letter ${got.letter} of ${name}`, [
        element(
          "dl",
          { class: "facts" },
          ...facts.flatMap(([head, words]) => [element("dt", {}, head), element("dd", {}, words)]),
        ),
        ...(got.stack ? [part("Stack", box("Stack", got.stack))] : []),
        ...contents,
        ...(got.settled === null
          ? [
              element(
                "div",
                { class: "row" },
                element(
                  "button",
                  { type: "button", onclick: () => again("redrive", { letters: [got.letter] }) },
                  "Redrive this letter…",
                ),
                element(
                  "button",
                  { type: "button", onclick: () => again("discard", { letters: [got.letter] }) },
                  "Discard this letter…",
                ),
              ),
            ]
          : []),
      ]);
      return "";
    });
  // close the dialog of a letter before the one that settles it opens
  const again = (what, chosen) => {
    closeDialog();
    begin(what, chosen);
  };

  // -- settling: a preview first, then exactly those letters --------------------------------------------------
  const DOES = {
    redrive: ["Redrive", "written back to their topics, each once", "redriven"],
    discard: ["Discard", "noted as done with; they stay in the topic until its retention removes them", "discarded"],
  };
  const begin = (what, chosen) =>
    report(async () => {
      const name = named(),
        [verb, does, done] = DOES[what],
        seen = await post(path(name, what), chosen);
      const { node: said, twice } = statusLine(),
        rows = new Table({
          id: "settling",
          label: `Letters that would be ${done}`,
          columns: columns(null),
          key: (r) => r.letter,
          empty: "No letter.",
        });
      const refused = seen.refused
          .slice(0, REFUSED)
          .map((each) => element("p", { class: "muted" }, `${each.letter} is refused: ${each.why}`)),
        more = seen.refused.length - refused.length;
      const reason = element("input", { name: "reason", maxlength: "500" }),
        names = seen.letters.map((each) => each.letter);
      const words = `${plural(names.length, "letter")} of ${name} would be ${does}.${seen.count > names.length ? ` ${whole(seen.count - names.length)} more match: do this again afterwards.` : ""}`;
      said.textContent = `${words} Nothing was changed.`;
      const go = twice(
        `${verb} ${plural(names.length, "letter")}`,
        `Yes, ${verb.toLowerCase()} ${plural(names.length, "letter")}`,
        () => words,
        async () => {
          const result = await post(path(name, what), {
            letters: names,
            confirm: name,
            ...(what === "discard" ? { reason: reason.value } : {}),
          });
          go.remove();
          return `${plural(result.count, "letter")} ${done}${result.refused.length ? `, ${whole(result.refused.length)} refused` : ""}.`;
        },
      );
      openDialog(
        `${verb} letters of ${name}`,
        [
          said,
          rows.node,
          ...refused,
          ...(more > 0 ? [element("p", { class: "muted" }, `and ${whole(more)} more are refused`)] : []),
          ...(what === "discard" ? [line("Reason", reason, "for lists of settled letters")] : []),
          ...(names.length ? [go] : []),
        ],
        {
          close: () => {
            rows.close();
            if (listed) report(list);
          },
        },
      );
      rows.show(seen.letters);
      return "";
    });
  settle.append(
    element("button", { type: "button", onclick: () => begin("redrive", filter()) }, "Redrive all that match…"),
    element("button", { type: "button", onclick: () => begin("discard", filter()) }, "Discard all that match…"),
  );

  const found = element("section", { "aria-label": "Letters", hidden: true }, settle, table.node);
  const refused = element(
    "p",
    { class: "empty" },
    "This server shows no dead letters: it is read-only, it knows no brokers, or you are no operator. `allocator deadletters` shows them in a terminal.",
  );
  const form = element(
    "section",
    { "aria-label": "Which letters" },
    credentials("Letters have the contents of records, so they need the token of the server."),
    topics,
    element(
      "div",
      { class: "filters" },
      field("Topic of the letters", topic),
      field("Error", error),
      field("From topic", from),
      field("Since, local time", since),
      field("Until", until),
      check(all, "settled ones too"),
      listButton,
    ),
    result,
  );
  const node = element(
    "div",
    { class: "body" },
    element("h2", { tabindex: "-1" }, "Dead letters"),
    refused,
    form,
    found,
  );
  const suggest = async () => {
    try {
      topics.replaceChildren(...(await read("deadletters")).topics.map((each) => element("option", { value: each })));
    } catch {
      /* without the token, there are no suggestions */
    }
  };
  topic.addEventListener("focus", suggest);
  return {
    node,
    update: () => {
      refused.hidden = offers("deadletters");
      form.hidden = !offers("deadletters");
    },
    close: () => table.close(),
    title: () => "Dead letters",
  };
};
