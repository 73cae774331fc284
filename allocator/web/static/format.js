// Numbers, times and ranges as text. Pure: no document, so that node can test it. Unknown is "unknown", never 0 or a dash.

export const UNKNOWN = "unknown";
const missing = (value) => value === null || value === undefined;

export const number = (value) => {
  if (missing(value)) return UNKNOWN;
  if (value !== 0 && Math.abs(value) < 1) return String(Number(value.toPrecision(2)));
  if (Math.abs(value) < 1000)
    return Number.isInteger(value) ? String(value) : value.toFixed(Math.abs(value) < 10 ? 1 : 0);
  for (const [unit, size] of [
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ])
    if (Math.abs(value) >= size)
      return `${(value / size).toFixed(Math.abs(value) < 10 * size ? 1 : 0).replace(/\.0$/, "")}${unit}`;
  return String(value);
};
// all digits, in groups of three
export const whole = (value) =>
  missing(value) ? UNKNOWN : Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
export const rate = (value) => (missing(value) ? UNKNOWN : `${number(value)}/s`);
export const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

export const span = (s) => {
  if (missing(s)) return UNKNOWN;
  if (s === 0) return "0 s";
  if (s < 1) return `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 90) return `${s.toFixed(s < 10 ? 1 : 0).replace(/\.0$/, "")} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${(s / 3600).toFixed(1).replace(/\.0$/, "")} h`;
  return `${Math.round(s / 86400)} days`;
};
// an age, or its lower bound if only that is known
export const age = (s, least) => (missing(s) && !missing(least) && least > 0 ? `over ${span(least)}` : span(s));
export const ago = (at, now) => (missing(at) ? UNKNOWN : now - at < 1 ? "now" : `${span(Math.floor(now - at))} ago`);

export const clock = (at, seconds = true) =>
  missing(at)
    ? UNKNOWN
    : new Date(at * 1000).toLocaleTimeString([], {
        hour: "2-digit",
        minute: "2-digit",
        second: seconds ? "2-digit" : undefined,
        hour12: false,
      });
const day = (at) => new Date(at * 1000).toLocaleDateString([], { year: "numeric", month: "2-digit", day: "2-digit" });
const FIRST = -62135596800,
  END = 253402300800; // the years 1 to 9999. Programs may set the timestamp of a record to microseconds
const raw = (ms) => `${Number.isSafeInteger(ms) ? "" : "about "}${ms} ms since 1970`;
// the date only if it is not that of `now`
export const moment = (at, now = Date.now() / 1000) =>
  missing(at)
    ? UNKNOWN
    : at < FIRST || at >= END
      ? raw(Math.round(at * 1000))
      : day(at) === day(now)
        ? clock(at)
        : `${day(at)} ${clock(at)}`;

export const expand = (ranges) =>
  ranges === ""
    ? []
    : ranges.split(",").flatMap((run) => {
        const [first, last] = run.split("-").map(Number);
        return Array.from({ length: (last ?? first) - first + 1 }, (_, at) => first + at);
      });
export const ranges = (numbers) => {
  const runs = [];
  for (const each of [...numbers].sort((a, b) => a - b)) {
    if (runs.length && runs.at(-1)[1] === each - 1) runs.at(-1)[1] = each;
    else runs.push([each, each]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
};

const LAGS = [0, 99, 999, 9999, 99999, Infinity],
  AGES = [0, 10, 60, 600, 3600, Infinity];
export const LAG_STEPS = ["none", "under 100", "under 1k", "under 10k", "under 100k", "100k and more"];
export const AGE_STEPS = ["none", "up to 10 s", "up to 1 min", "up to 10 min", "up to 1 h", "over 1 h"];
// the step of a colour scale, null for unknown
export const lagStep = (lag) => (missing(lag) ? null : LAGS.findIndex((most) => lag <= most));
export const ageStep = (s) => (missing(s) ? null : AGES.findIndex((most) => s <= most));
