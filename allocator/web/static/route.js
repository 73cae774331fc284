// Addresses inside the page: "#/group/billing/partitions?q=orders&sort=-lag". Pure.

export const VIEWS = ["summary", "partitions", "rebalances", "rebalance", "member", "topic", "plan"];
const ALONE = ["topics", "brokers", "audit", "letters", "records"]; // views without a group

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

// {view, group, item, query}; view "overview" has no group, and `item` is a member, a topic or the id of a rebalance; "records" has a topic, and no group
export const parse = (hash) => {
  const text = hash.replace(/^#/, "");
  if (text && !text.startsWith("/")) return { view: "summary", group: decoded(text), item: null, query: {} }; // addresses of older versions
  const [path, search = ""] = text.split("?", 2);
  const query = Object.fromEntries(new URLSearchParams(search));
  const [kind, group, view = "summary", item = null] = path.split("/").slice(1).map(decoded);
  if (kind === "records") return { view: "records", group: null, item: group || null, query };
  if (ALONE.includes(kind)) return { view: kind, group: null, item: null, query };
  if (kind !== "group" || !group) return { view: "overview", group: null, item: null, query };
  return VIEWS.includes(view) ? { view, group, item, query } : { view: "summary", group, item: null, query };
};

export const build = ({ view = "overview", group = null, item = null, query = {} }) => {
  const place =
    group === null ? [ALONE.includes(view) ? view : ""] : ["group", group, ...(view === "summary" ? [] : [view])];
  const parts = item === null ? place : [...place, item];
  const search = new URLSearchParams(
    Object.entries(query).filter(
      ([, value]) => value !== "" && value !== null && value !== undefined && value !== false,
    ),
  ).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
};

export const sameView = (a, b) => a && b && a.view === b.view && a.group === b.group && a.item === b.item;
