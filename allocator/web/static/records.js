// Records of a topic: around an offset, from a time on, the newest ones, or of a key. Decoded and masked by the server.

import { authorization, secret } from "./requests.js";
import { element, set } from "./dom.js";
import { clock, moment, plural, whole } from "./format.js";
import { check, choice, field } from "./parts.js";
import { build } from "./route.js";
import { matches } from "./rows.js";
import { state } from "./state.js";

// Whether this user may read records, possibly after entering the token
export const offered = () => (state.hello?.records ?? "no") !== "no";

const FROM = [
  ["latest", "the newest"],
  ["earliest", "the oldest"],
  ["offset", "an offset"],
  ["time", "a time"],
];
const ISOLATION = [
  ["read_uncommitted", "all records"],
  ["read_committed", "committed records only"],
];
const FORMATS = [
  ["auto", "what they are"],
  ["json", "JSON"],
  ["text", "text"],
  ["hex", "hex"],
];
const PICKS = 100; // topics that the picker offers at once
const WINDOWS = 12; // partitions for which the page shows the range that was read

const argumentsOf = (query) => {
  const { from = "latest", offset = "", time = "", ...rest } = query;
  const at = Date.parse(time);
  const given = {
    ...rest,
    from:
      from === "offset"
        ? offset || "0"
        : from === "time" && !Number.isNaN(at)
          ? new Date(at).toISOString()
          : from === "time"
            ? ""
            : from,
  };
  return new URLSearchParams(
    Object.entries(given).filter(([, value]) => value !== "" && value !== undefined && value !== null),
  ).toString();
};
const request = async (topic, what, query) => {
  const response = await fetch(`api/topics/${encodeURIComponent(topic)}/${what}?${argumentsOf(query)}`, {
    headers: authorization(),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
};

const one = (topic, record) => {
  const when = record.timestamp_ms === null ? "no time" : moment(record.timestamp_ms / 1000);
  const short = (part) => (part.format === "null" ? "null" : part.text.slice(0, 300));
  const lines = (name, part) => [
    element(
      "dt",
      {},
      `${name} (${[part.format, part.format === "null" ? null : plural(part.size, "byte"), part.note].filter(Boolean).join(", ")})`,
    ),
    element(
      "dd",
      {},
      element(
        "pre",
        { tabindex: "0" },
        part.format === "null" ? "null" : pretty(part),
        part.cut ? " … (cut; a download has all of it)" : "",
      ),
    ),
  ];
  const body = element("dl"),
    details = element(
      "details",
      {},
      element(
        "summary",
        {},
        element("span", {}, `${topic}:${record.partition} ${whole(record.offset)}`),
        element("span", {}, when),
        element("span", {}, short(record.key)),
        element("span", {}, short(record.value)),
      ),
      body,
    );
  details.addEventListener("toggle", () => {
    if (details.open && !body.childElementCount)
      set(
        body,
        ...lines("key", record.key),
        ...lines("value", record.value),
        ...record.headers.flatMap((each) => lines(`header ${each.name}`, each)),
      );
  });
  return element("li", {}, details);
};
// Formats an object over several lines, unless that would change a number: JavaScript has no 64-bit integers.
const pretty = (part) => {
  if (part.cut || !["json", "avro", "protobuf"].includes(part.format) || /\d{16}/.test(part.text)) return part.text;
  try {
    return JSON.stringify(JSON.parse(part.text), null, 2);
  } catch {
    return part.text;
  }
};

const summary = (found) => {
  const lines = [
    `${plural(found.records.length, "record")}; ${whole(found.scanned)} searched${found.stopped ? `, until the limit of ${found.stopped}` : ""}, at ${clock(Date.now() / 1000)}.`,
  ];
  if (found.by_partitioner)
    lines.push(
      `The key was searched in partition ${found.windows[0].partition}, where Kafka's default partitioner puts it.`,
    );
  const range = (first, next) => `${whole(first)} to ${whole(next - 1)}`;
  for (const each of found.windows.slice(0, WINDOWS))
    lines.push(
      `${found.topic}:${each.partition}: ${each.next > each.first ? `offsets ${range(each.first, each.next)}` : "nothing"} searched; ` +
        `${each.end > each.begin ? `the log has ${range(each.begin, each.end)}` : "the log is empty"}.`,
    );
  if (found.windows.length > WINDOWS) lines.push(`And ${plural(found.windows.length - WINDOWS, "more partition")}.`);
  if (found.leaderless.length)
    lines.push(
      `${plural(found.leaderless.length, "partition")} without a leader not searched: ${found.leaderless.slice(0, WINDOWS).join(", ")}${found.leaderless.length > WINDOWS ? ", …" : ""}.`,
    );
  return lines.join("\n");
};

export const records = (route, query) => {
  const q = { limit: "50", ...route.query };
  const change = (part) => {
    Object.assign(q, part);
    query(part);
  };
  const input = (name, attributes = {}) => {
    const node = element("input", {
      name,
      value: q[name] ?? "",
      spellcheck: "false",
      autocomplete: "off",
      ...attributes,
    });
    node.addEventListener("input", () => change({ [name]: node.value }));
    return node;
  };
  const picks = element("datalist", { id: "record-topics" });
  const topic = element("input", {
    name: "topic",
    value: route.item ?? "",
    spellcheck: "false",
    autocomplete: "off",
    required: true,
    list: "record-topics",
    placeholder: "name of a topic",
  });
  let names = null;
  const suggest = async () => {
    try {
      names ??= (await (await fetch("api/topics")).json()).topics.map((each) => each.topic);
    } catch {
      return; /* without suggestions, a name can be entered */
    }
    picks.replaceChildren(
      ...names
        .filter((name) => matches(name, topic.value))
        .slice(0, PICKS)
        .map((name) => element("option", { value: name })),
    );
  };
  topic.addEventListener("focus", suggest);
  topic.addEventListener("input", suggest);
  const when = field("Time (local)", input("time", { type: "datetime-local", step: "1" })),
    at = field("Offset", input("offset", { type: "number", min: "0" }));
  const places = () => {
    when.hidden = q.from !== "time";
    at.hidden = q.from !== "offset";
  };
  const every = element("input", { type: "checkbox", name: "every_partition", checked: q.every_partition === "true" });
  every.addEventListener("change", () => change({ every_partition: every.checked ? "true" : "" }));
  const login = field("Token", secret());
  const format = element("span"),
    say = element("p", { class: "muted summary", role: "status" }),
    list = element("ul", { class: "records" });
  const older = element("button", { type: "button", hidden: true }, "Older"),
    newer = element("button", { type: "button", hidden: true }, "Newer");

  const load = async (wanted) => {
    say.textContent = "…";
    try {
      const found = await (await request(topic.value, "records", wanted)).json();
      list.replaceChildren(...found.records.map((each) => one(found.topic, each)));
      say.textContent = summary(found);
      const [window] = found.windows,
        single = found.windows.length === 1;
      older.hidden = !(single && window.first > window.begin);
      newer.hidden = !(single && window.next < window.end);
      const step = (part) => () => {
        const next = { ...q, partition: String(window.partition), ...part };
        load(next);
      };
      older.onclick = step({ from: "offset", offset: String(window.first), before: q.limit, limit: "0" });
      newer.onclick = step({ from: "offset", offset: String(window.next), before: "" });
    } catch (error) {
      say.textContent = error instanceof TypeError ? "The server does not respond." : error.message;
    }
  };
  const show = (event) => {
    event?.preventDefault();
    if (!topic.value) {
      say.textContent = "Enter a topic.";
      return;
    }
    if (topic.value !== route.item) {
      location.hash = build({ view: "records", item: topic.value, query: { ...q, shown: undefined } });
      return;
    }
    load(q);
  };
  const download = async () => {
    say.textContent = "…";
    try {
      const data = await (await request(topic.value, "records.jsonl", q)).blob(),
        url = URL.createObjectURL(data);
      const save = element("a", { href: url, download: `${topic.value}.jsonl` });
      save.click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
      say.textContent = `Saved as ${topic.value}.jsonl.`;
    } catch (error) {
      say.textContent = error instanceof TypeError ? "The server does not respond." : error.message;
    }
  };
  const form = element(
    "form",
    { class: "filters" },
    field("Topic", topic),
    picks,
    field("Partition", input("partition", { type: "number", min: "0", placeholder: "all" })),
    field(
      "From",
      choice("from", FROM, q.from ?? "latest", (from) => {
        change({ from });
        places();
      }),
    ),
    at,
    when,
    field("Records before", input("before", { type: "number", min: "0", max: "1000", placeholder: "0" })),
    field("Records", input("limit", { type: "number", min: "0", max: "1000" })),
    field("Key", input("key", { placeholder: "any" })),
    check(every, "search for the key in all partitions"),
    field(
      "Transactions",
      choice("isolation_level", ISOLATION, q.isolation_level ?? "read_uncommitted", (value) =>
        change({ isolation_level: value }),
      ),
    ),
    format,
    login,
    element("button", { type: "submit" }, "Show"),
    element("button", { type: "button", onclick: download }, "Download as JSON lines"),
  );
  form.addEventListener("submit", show);
  places();

  let begun = false;
  const update = (kind) => {
    if (!state.hello || (begun && kind !== "clock")) return;
    login.hidden = state.hello.records !== "token";
    if (begun) return;
    begun = true;
    const open = (part) => !state.hello.masked.includes(part) || undefined;
    const formats = (part) => FORMATS.filter(([name]) => open(part) || name === "auto" || name === "json");
    set(
      format,
      ...["key", "value"].map((part) =>
        field(
          part === "key" ? "Keys as" : "Values as",
          choice(`${part}_format`, formats(part), q[`${part}_format`] ?? "auto", (value) =>
            change({ [`${part}_format`]: value }),
          ),
        ),
      ),
    );
    format.className = "filters inner";
    if (state.hello.records === "no") {
      form.hidden = true;
      say.textContent = "This server shows you no records. Start it with --records viewers, or as an operator.";
      return;
    }
    if (route.item !== null && (state.hello.records === "yes" || authorization().Authorization)) load(q);
  };
  const heading = element("h2", { tabindex: "-1" }, route.item === null ? "Records" : `Records of ${route.item}`);
  const node = element(
    "section",
    { class: "view", "aria-label": "Records" },
    heading,
    form,
    say,
    element("div", { class: "range" }, older, newer),
    list,
  );
  return { node, update, close: () => {}, title: () => heading.textContent };
};
