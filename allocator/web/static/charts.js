// Lines over time and the strip of rebalances, as SVG made here.

const NS = "http://www.w3.org/2000/svg";
export const svg = (name, attributes = {}, ...children) => {
  const node = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
export const element = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

export const number = (value) => {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1000) return Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? 1 : 0);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size) return `${(value / size).toFixed(Math.abs(value) < 10 * size ? 1 : 0).replace(/\.0$/, "")}${unit}`;
  return String(value);
};
export const clock = (at, seconds = true) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hour12: false });
export const span = (s) => (s === null || s === undefined ? "–" : s < 1 ? `${Math.round(s * 1000)} ms` : s < 90 ? `${s.toFixed(s < 10 ? 2 : 0)} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);

const nice = (top) => {
  if (top <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((each) => each * power).find((each) => each >= top);
};

// One chart; `lines` is [{key, label, kind}], kind being "a" or "b"
export class Chart {
  constructor(title, lines, unit = "") {
    this.title = title; this.lines = lines; this.unit = unit; this.points = []; this.events = [];
    this.caption = element("figcaption", {}, element("b", {}, title));
    this.values = lines.map((line) => {
      const value = element("span", { class: `key ${line.kind}` });
      this.caption.append(value);
      return value;
    });
    this.picture = svg("svg", { role: "img" });
    this.figure = element("figure", {}, this.caption, this.picture);
    this.picture.addEventListener("pointermove", (event) => { this.pointed = event.clientX - this.picture.getBoundingClientRect().left; this.draw(); });
    this.picture.addEventListener("pointerleave", () => { this.pointed = null; this.draw(); });
  }
  show(points, events) { this.points = points; this.events = events; this.draw(); }
  draw() {
    const width = Math.max(240, this.figure.clientWidth), height = 130, left = 38, right = 8, top = 8, bottom = 18;
    const points = this.points, picture = this.picture;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren();
    if (points.length < 2) {
      picture.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, points.length ? "one measurement so far" : "no measurement yet"));
      this.say(points.at(-1));
      return;
    }
    const from = points[0].at, to = points.at(-1).at;
    const high = nice(Math.max(...this.lines.flatMap((line) => points.map((point) => point[line.key] ?? 0))));
    const x = (at) => left + ((at - from) / (to - from)) * (width - left - right);
    const y = (value) => height - bottom - (value / high) * (height - top - bottom);
    for (const part of [0, 0.5, 1]) {
      picture.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(high * part), y2: y(high * part) }));
      picture.append(svg("text", { x: left - 5, y: y(high * part) + 4, "text-anchor": "end" }, number(high * part)));
    }
    picture.append(svg("text", { x: left, y: height - 4 }, clock(from)), svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, clock(to)));
    for (const at of this.events) if (at >= from && at <= to) picture.append(svg("line", { class: "event", x1: x(at), x2: x(at), y1: top, y2: height - bottom }));
    for (const line of this.lines) {
      let path = "", pen = "M", runs = [], run = [];
      for (const point of points) {
        const value = point[line.key];
        if (value === null || value === undefined) { pen = "M"; if (run.length) runs.push(run); run = []; continue; }
        const spot = `${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
        path += `${pen}${spot}`; pen = "L"; run.push(point);
      }
      if (run.length) runs.push(run);
      if (line.kind === "a") for (const each of runs) picture.append(svg("path", { class: "under", d: `M${x(each[0].at)} ${y(0)}${each.map((p) => `L${x(p.at).toFixed(1)} ${y(p[line.key]).toFixed(1)}`).join("")}L${x(each.at(-1).at)} ${y(0)}Z` }));
      picture.append(svg("path", { class: line.kind, d: path || "M0 0" }));
    }
    let chosen = points.at(-1);
    if (this.pointed !== null && this.pointed !== undefined) {
      const at = from + ((this.pointed * width / picture.getBoundingClientRect().width - left) / (width - left - right)) * (to - from);
      chosen = points.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best));
      picture.append(svg("line", { class: "cursor", x1: x(chosen.at), x2: x(chosen.at), y1: top, y2: height - bottom }));
    }
    this.say(chosen);
  }
  say(point) {
    const when = point && this.pointed ? ` at ${clock(point.at)}` : "";
    this.lines.forEach((line, at) => { this.values[at].textContent = `${line.label} ${number(point?.[line.key])}${this.unit}${at === this.lines.length - 1 ? when : ""}`; });
    this.picture.setAttribute("aria-label", `${this.title}: ${this.values.map((value) => value.textContent).join(", ")}`);
  }
}

// Rebalances along time: as wide as each took, as high as the root of the share that it moved, so that small moves show
export const timeline = (box, rebalances, since, now) => {
  const width = Math.max(240, box.clientWidth), height = 64, bottom = 16;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${rebalances.length} rebalances; the table below has them` });
  const from = Math.min(since, ...rebalances.map((each) => each.began)), to = Math.max(now, from + 1);
  const x = (at) => 2 + ((at - from) / (to - from)) * (width - 4);
  picture.append(svg("line", { class: "axis", x1: 0, x2: width, y1: height - bottom, y2: height - bottom }));
  for (const each of rebalances) {
    const wide = Math.max(4, x(each.ended ?? now) - x(each.began));
    const high = Math.max(5, Math.sqrt(each.moved / Math.max(1, each.total, each.moved)) * (height - bottom - 4));
    picture.append(svg("rect", { class: each.ended === null ? "bar open" : "bar", x: Math.min(x(each.began), width - wide), width: wide, y: height - bottom - high, height: high, rx: 1 },
      svg("title", {}, `generation ${each.generation}, ${clock(each.began)}: ${each.moved} of ${each.total} moved, ${each.took_s === null ? "" : `${span(each.took_s)}; `}${each.why.join("; ")}`)));
  }
  picture.append(svg("text", { x: 0, y: height - 2 }, clock(from)), svg("text", { x: width, y: height - 2, "text-anchor": "end" }, "now"));
  box.replaceChildren(picture);
};
