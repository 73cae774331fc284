// Lines over time and the strip of rebalances and events, as SVG.

import { element, svg } from "./dom.js";
import { clock, moment, number, span } from "./format.js";

const nice = (top) => {
  if (top <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((each) => each * power).find((each) => each >= top);
};

// One chart. `lines` is [{key, label, kind}]; `kind` is "a" or "b"
export class Chart {
  constructor(title, lines, unit = "", words = null) {
    this.title = title;
    this.lines = lines;
    this.points = [];
    this.events = [];
    this.words =
      words ?? ((value) => (value === null || value === undefined ? number(value) : `${number(value)}${unit}`));
    this.caption = element("figcaption", {}, element("b", {}, title));
    this.values = lines.map((line) => {
      const value = element("span", { class: `key ${line.kind}` });
      this.caption.append(value);
      return value;
    });
    this.picture = svg("svg", { role: "img" });
    this.figure = element(
      "figure",
      { tabindex: "0", "aria-label": `${title}, arrow keys move along the time` },
      this.caption,
      this.picture,
    );
    this.figure.addEventListener("keydown", (event) => {
      const last = this.points.length - 1,
        at = this.chosen ?? last;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 20, PageDown: at + 20, Home: 0, End: last }[
        event.key
      ];
      if (to === undefined && event.key !== "Escape") return;
      event.preventDefault();
      this.chosen = to === undefined ? null : Math.max(0, Math.min(last, to));
      this.draw();
    });
    this.figure.addEventListener("blur", () => {
      this.chosen = null;
      this.draw();
    });
    this.picture.addEventListener("pointermove", (event) => {
      this.pointed = event.clientX - this.picture.getBoundingClientRect().left;
      this.draw();
    });
    this.picture.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.draw();
    });
  }
  show(points, events) {
    this.points = points;
    this.events = events;
    this.draw();
  }
  draw() {
    const width = Math.max(240, this.figure.clientWidth),
      height = 130,
      left = 38,
      right = 8,
      top = 8,
      bottom = 18;
    const points = this.points,
      picture = this.picture;
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren();
    if (points.length < 2) {
      picture.append(
        svg(
          "text",
          { x: width / 2, y: height / 2, "text-anchor": "middle" },
          points.length ? "one measurement so far" : "no measurement yet",
        ),
      );
      this.say(points.at(-1));
      return;
    }
    const from = points[0].at,
      to = points.at(-1).at;
    const high = nice(Math.max(...this.lines.flatMap((line) => points.map((point) => point[line.key] ?? 0))));
    const x = (at) => left + ((at - from) / (to - from)) * (width - left - right);
    const y = (value) => height - bottom - (value / high) * (height - top - bottom);
    for (const part of [0, 0.5, 1]) {
      picture.append(
        svg("line", { class: "axis", x1: left, x2: width - right, y1: y(high * part), y2: y(high * part) }),
      );
      picture.append(
        svg(
          "text",
          { x: left - 5, y: y(high * part) + 4, "text-anchor": "end" },
          high < 1 ? high * part : number(high * part),
        ),
      );
    }
    picture.append(
      svg("text", { x: left, y: height - 4 }, moment(from)),
      svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, moment(to)),
    );
    for (const at of this.events)
      if (at >= from && at <= to)
        picture.append(svg("line", { class: "event", x1: x(at), x2: x(at), y1: top, y2: height - bottom }));
    for (const line of this.lines) {
      let path = "",
        pen = "M",
        runs = [],
        run = [];
      for (const point of points) {
        const value = point[line.key];
        if (value === null || value === undefined) {
          pen = "M";
          if (run.length) runs.push(run);
          run = [];
          continue;
        }
        const spot = `${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
        path += `${pen}${spot}`;
        pen = "L";
        run.push(point);
      }
      if (run.length) runs.push(run);
      if (line.kind === "a")
        for (const each of runs)
          picture.append(
            svg("path", {
              class: "under",
              d: `M${x(each[0].at)} ${y(0)}${each.map((p) => `L${x(p.at).toFixed(1)} ${y(p[line.key]).toFixed(1)}`).join("")}L${x(each.at(-1).at)} ${y(0)}Z`,
            }),
          );
      picture.append(svg("path", { class: line.kind, d: path || "M0 0" }));
    }
    let chosen = points.at(-1);
    if (this.chosen !== null && this.chosen !== undefined && points[this.chosen]) {
      chosen = points[this.chosen];
      picture.append(
        svg("line", { class: "cursor", x1: x(chosen.at), x2: x(chosen.at), y1: top, y2: height - bottom }),
      );
    } else if (this.pointed !== null && this.pointed !== undefined) {
      const at =
        from +
        (((this.pointed * width) / picture.getBoundingClientRect().width - left) / (width - left - right)) *
          (to - from);
      chosen = points.reduce((best, point) => (Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best));
      picture.append(
        svg("line", { class: "cursor", x1: x(chosen.at), x2: x(chosen.at), y1: top, y2: height - bottom }),
      );
    }
    this.say(chosen);
  }
  say(point) {
    const when =
      point && (this.pointed || (this.chosen !== null && this.chosen !== undefined)) ? ` at ${clock(point.at)}` : "";
    this.lines.forEach((line, at) => {
      this.values[at].textContent =
        `${line.label} ${this.words(point?.[line.key])}${at === this.lines.length - 1 ? when : ""}`;
    });
    this.picture.setAttribute(
      "aria-label",
      `${this.title}: ${this.values.map((value) => value.textContent).join(", ")}`,
    );
  }
}

// Rebalances over time. The width is the duration; the height is the square root of the fraction of partitions that moved, so
// that small moves are visible. `events` are marks above them: {at, kind, text}.
export const timeline = (box, rebalances, since, now, href, events = []) => {
  const width = Math.max(240, box.clientWidth),
    height = 78,
    bottom = 16,
    top = 14;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const from = Math.min(since, ...rebalances.map((each) => each.began), ...events.map((each) => each.at)),
    to = Math.max(now, from + 1);
  const x = (at) => 2 + ((at - from) / (to - from)) * (width - 4);
  picture.append(svg("line", { class: "axis", x1: 0, x2: width, y1: height - bottom, y2: height - bottom }));
  for (const each of rebalances) {
    const wide = Math.max(4, x(each.ended ?? now) - x(each.began));
    const high = Math.max(5, Math.sqrt(each.moved / Math.max(1, each.total, each.moved)) * (height - bottom - top - 4));
    const bar = svg(
      "rect",
      {
        class: each.ended === null ? "bar open" : "bar",
        x: Math.min(x(each.began), width - wide),
        width: wide,
        y: height - bottom - high,
        height: high,
        rx: 1,
      },
      svg(
        "title",
        {},
        `${each.generation === null ? "" : `generation ${each.generation}, `}${moment(each.began)}: ${each.moved} of ${each.total} moved, ` +
          `${each.took_s === null ? "" : `${span(each.took_s)}; `}${each.why.join("; ")}`,
      ),
    );
    bar.addEventListener("click", () => {
      location.hash = href(each);
    });
    picture.append(bar);
  }
  for (const each of events)
    picture.append(
      svg(
        "text",
        {
          class: `mark ${each.kind}`,
          x: Math.min(width - 6, Math.max(6, x(each.at))),
          y: top - 3,
          "text-anchor": "middle",
        },
        MARKS[each.kind] ?? "•",
        svg("title", {}, `${moment(each.at)}: ${each.text}`),
      ),
    );
  picture.append(
    svg("text", { x: 0, y: height - 2 }, moment(from)),
    svg("text", { x: width, y: height - 2, "text-anchor": "end" }, "now"),
  );
  box.replaceChildren(picture);
};
export const MARKS = { fault: "✕", command: "▲", deployment: "◆", outage: "▬" };
