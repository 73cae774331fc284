// The page: follows one stream of events and the address, and shows the view that the address names.

import { element, link, say } from "./dom.js";
import { clock, moment, span } from "./format.js";
import { audit } from "./audit.js";
import { brokers, clusterHead, topics } from "./cluster.js";
import { groupHead, summary } from "./group.js";
import { member, topic } from "./member.js";
import { letters } from "./letters.js";
import { overview } from "./overview.js";
import { partitions } from "./partitions.js";
import { plan } from "./plan.js";
import { build, parse, sameView } from "./route.js";
import { rebalance, rebalances } from "./rebalances.js";
import { records } from "./records.js";
import { KEPT, clear, knownNow, learn, now, source, state } from "./state.js";

const get = (id) => document.getElementById(id);
const VIEWS = {
  overview,
  summary,
  partitions,
  rebalances,
  rebalance,
  member,
  topic,
  plan,
  topics,
  brokers,
  audit,
  letters,
  records,
};
const CLUSTERS = {
  kafka: "Kafka",
  zookeeper: "ZooKeeper",
  doctor: "The doctor",
  watcher: "The watcher",
  history: "The file of the history",
};
const MEANS = { kafka: "Offsets and lag are unknown", history: "What happens now may be lost with this server" };
let view = null,
  head = null;

// -- the stream --------------------------------------------------------------------------------------------------

let stream = null;
const connect = () => {
  stream?.close();
  const group = state.route.group;
  clear();
  const source = (stream = new EventSource(
    group === null ? "api/events" : `api/events?group=${encodeURIComponent(group)}`,
  ));
  source.onopen = () => {
    state.connected = true;
    state.lost = null;
    showLink();
  };
  source.onerror = () => {
    state.connected = false;
    state.lost ??= now();
    showLink();
    head?.update();
    if (source.readyState === EventSource.CLOSED)
      setTimeout(() => {
        if (stream === source) connect();
      }, 3000);
  };
  const on = (kind, take) =>
    source.addEventListener(kind, (event) => {
      state.heard = now();
      take(JSON.parse(event.data));
      head?.update();
      view?.update(kind);
    });
  on("clock", (value) => {
    state.hello = value;
    state.skew = value.now - Date.now() / 1000;
  });
  on("commands", (value) => {
    state.commands = value;
  });
  on("events", (value) => {
    state.events = value;
  });
  on("overview", (value) => {
    state.overview = value;
    showLink();
  });
  on("group", (value) => {
    learn(value);
    get("missing").hidden = true;
    get("view").hidden = false;
    showTitle();
  });
  on("loads", (value) => {
    state.loads = value;
  });
  on("lag", (value) => {
    state.lag = value;
    load();
  });
  on("rebalances", (value) => {
    state.rebalances = value;
  });
  on("findings", (value) => {
    state.findings = value;
  });
  on("series", (value) => {
    state.points = (value.whole ? [] : state.points).concat(value.points).slice(-KEPT);
  });
  on("missing", () => {
    get("view").hidden = true;
    get("missing").hidden = false;
    get("missing").textContent = `There is no group “${group}”.`;
  });
};

// offsets of each partition, for views that show them
let loading = false,
  again = false;
const load = async () => {
  if (view?.needs !== "offsets") return;
  if (loading) {
    again = true;
    return;
  }
  loading = true;
  const group = state.route.group;
  try {
    const response = await fetch(`api/groups/${encodeURIComponent(group)}/offsets`);
    if (response.ok && group === state.route.group) {
      state.offsets = await response.json();
      view?.update("offsets");
    }
  } catch {
    /* the stream reports that the server does not respond */
  } finally {
    loading = false;
    if (again) {
      again = false;
      load();
    }
  }
};

// -- state and age of the data ----------------------------------------------------------------------------------

const showLink = () => {
  const problems = state.overview?.clusters.filter((each) => each.why) ?? [];
  const words = !state.connected
    ? state.lost
      ? "no connection: this page may be outdated"
      : "connecting"
    : problems.length
      ? "connected, but a cluster does not respond"
      : "live";
  say(get("link"), words);
  get("link").className =
    `badge ${!state.connected ? (state.lost ? "bad" : "quiet busy") : problems.length ? "busy" : "good"}`;
  document.body.classList.toggle("old-zookeeper", !!state.overview && !knownNow(source()));
  document.body.classList.toggle(
    "old-kafka",
    !!state.overview &&
      !knownNow("kafka") &&
      (!state.connected || state.overview.clusters.some((each) => each.cluster === "kafka")),
  );
  const lines = problems.map(
    (each) =>
      `${CLUSTERS[each.cluster] ?? each.cluster} has not responded since ${moment(each.away_since)}: ${each.why.replace(/\.+$/, "")}. ` +
      `${MEANS[each.cluster] ?? "What is shown is old"}${each.as_of ? `; the last response was at ${moment(each.as_of)}` : ""}.`,
  );
  if (!state.connected && state.lost)
    lines.unshift(
      `The server of this page has not responded since ${moment(state.lost)}. Everything below is as of ${moment(state.heard ?? state.lost)}.`,
    );
  const wrong = get("wrong");
  wrong.hidden = !lines.length;
  if (wrong.dataset.words !== lines.join("\n")) {
    wrong.dataset.words = lines.join("\n");
    wrong.replaceChildren(...lines.map((line) => element("p", {}, line)));
  }
  showAge();
};
const showAge = () => {
  if (!state.overview) {
    say(get("as-of"), "");
    return;
  }
  const kafka = state.overview.clusters.find((each) => each.cluster === "kafka"),
    zookeeper = state.overview.clusters.find((each) => each.cluster === "zookeeper");
  const live = source() === "kafka" ? kafka?.as_of : (zookeeper?.as_of ?? now());
  const owners = state.connected ? live : state.heard;
  say(
    get("as-of"),
    `owners as of ${owners ? clock(owners) : "never"}${kafka ? `, offsets as of ${kafka.as_of ? clock(kafka.as_of) : "never"}` : ""}`,
  );
  get("as-of").title = kafka?.as_of ? `offsets are ${span(Math.max(0, now() - kafka.as_of))} old` : "";
};

// -- the current view ------------------------------------------------------------------------------------------------

const query = (part) => {
  if (!sameView(parse(location.hash), state.route)) return; // the address names another view already, which is about to be shown
  const merged = { ...state.route.query, ...part };
  state.route.query = merged;
  history.replaceState(null, "", build(state.route));
};
const showTitle = () => {
  document.title = `${view.title()} – allocator`;
};
const ALONE = { topics: "Topics", brokers: "Brokers", records: "Records", letters: "Dead letters", audit: "Changes" };
const crumbs = () => {
  const { view: kind, group, item } = state.route;
  const steps = [[build({}), "All groups"]];
  if (group !== null) steps.push([build({ view: "summary", group }), group]);
  if (kind === "rebalance") steps.push([build({ view: "rebalances", group }), "Rebalances"]);
  if (kind in ALONE) steps.push([build({ view: kind }), ALONE[kind]]);
  if (item !== null)
    steps.push([
      build(state.route),
      kind === "rebalance" ? "Rebalance" : kind === "topic" || kind === "records" ? item : "Member",
    ]);
  get("crumbs").replaceChildren(
    element(
      "ol",
      {},
      ...steps.map(([href, words], at) =>
        element("li", {}, link(href, words, { "aria-current": at === steps.length - 1 ? "page" : undefined })),
      ),
    ),
  );
};
const show = (first = false) => {
  const before = state.route,
    next = parse(location.hash);
  if (location.hash && !location.hash.startsWith("#/")) history.replaceState(null, "", build(next));
  state.route = next;
  if (sameView(before, next) && JSON.stringify(before.query) === JSON.stringify(next.query)) return;
  view?.close();
  const main = get("view");
  if (!before || before.group !== next.group) connect();
  view = VIEWS[next.view](next, query);
  head = next.group === null ? clusterHead(next) : groupHead(next);
  get("missing").hidden = true;
  main.hidden = false;
  main.replaceChildren(...[head?.node, view.node].filter(Boolean));
  crumbs();
  showTitle();
  head?.update();
  view.update("all");
  load();
  // move the focus to the start of the new view
  if (!first) {
    main.querySelector("h2")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
};

addEventListener("hashchange", () => show());
get("skip").addEventListener("click", (event) => {
  event.preventDefault();
  get("main").focus();
});
let resizing = null;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => view?.update("resize"), 100);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.update("resize"));
setInterval(() => {
  if (!document.hidden && state.connected) showAge();
}, 1000);
show(true);
