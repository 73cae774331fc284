// The partitions of a group as cells, coloured by owner, lag or age.

import { element } from "./dom.js";
import { Grid, colours, piece, sizeFor } from "./draw.js";
import { AGE_STEPS, LAG_STEPS, ageStep, lagStep, number, span, whole } from "./format.js";
import { choice, field } from "./parts.js";
import { ageOf, called, lagOf, looks, state } from "./state.js";

const SCALES = { owner: null, lag: LAG_STEPS, age: AGE_STEPS };
const HINT = "Point at a partition, or use the arrow keys.";

// `topics` selects the topics of the group to show
export const map = (topics, query) => {
  let grids = [],
    names = "",
    cursor = null;
  const box = element("div", {
    id: "grids",
    tabindex: "0",
    role: "application",
    "aria-label":
      "Partitions by topic. Arrow keys choose one, page up and page down change the topic. The text below describes it.",
  });
  const legend = element("p", { id: "legend", class: "legend" });
  const text = element("p", { id: "cell", class: "cell", role: "status", "aria-live": "polite" }, HINT);
  const mode = () => (state.route.query.colour in SCALES ? state.route.query.colour : "owner");
  const chooser = field(
    "Colour by",
    choice(
      "colour",
      [
        ["owner", "owner"],
        ["lag", "lag"],
        ["age", "age of the lag"],
      ],
      mode(),
      (value) => {
        query({ colour: value === "owner" ? "" : value });
        draw();
      },
    ),
    "inline",
  );

  const build = () => {
    const shown = topics(),
      now = shown.map((topic) => topic.name).join("\n");
    if (now !== names || !grids.length) {
      names = now;
      cursor = null;
      grids = shown.map((topic, at) => {
        const canvas = element("canvas", { "aria-hidden": "true" }),
          title = element("h4");
        const grid = { title, box: element("div", {}, title, canvas), grid: new Grid(canvas) };
        canvas.addEventListener("pointermove", (event) => {
          const cell = grid.grid.at(event);
          if (cell !== null) describe(at, cell);
        });
        canvas.addEventListener("click", (event) => {
          const cell = grid.grid.at(event);
          if (cell !== null) {
            cursor = [at, cell];
            draw();
            describe(at, cell);
          }
        });
        return grid;
      });
      box.replaceChildren(...grids.map((grid) => grid.box));
    }
    grids.forEach((grid, at) =>
      grid.title.replaceChildren(
        `${shown[at].name} `,
        element("span", { class: "muted" }, `${whole(shown[at].cells.length)} partitions`),
      ),
    );
  };
  const draw = () => {
    if (!state.group || !box.isConnected) return;
    const by = mode(),
      shown = topics(),
      all = shown.flatMap((topic) => topic.cells);
    for (const cell of all) {
      cell.heat = by === "owner" ? undefined : by === "lag" ? lagStep(lagOf(cell)) : ageStep(ageOf(cell));
      cell.tag =
        by === "owner"
          ? undefined
          : cell.heat === 0
            ? ""
            : by === "lag"
              ? lagOf(cell) === null
                ? "?"
                : number(lagOf(cell))
              : ageOf(cell) === null
                ? "?"
                : span(ageOf(cell)).replace(" ", "");
    }
    const size = sizeFor(all.length, box.clientWidth);
    grids.forEach((grid, at) =>
      grid.grid.draw(shown[at].cells, size, looks, { only: state.only, cursor: cursor?.[0] === at ? cursor[1] : null }),
    );
    const count = (words, kind, cell) => element("span", {}, sample(cell), `${words} ${kind}`);
    const who = state.group.members[0]?.id ?? null,
      none = all.filter((cell) => cell.unowned && cell.to === null).length,
      retired = all.filter((cell) => cell.retired).length;
    const unowned = count(none, "without an owner", { owner: null, to: null, moved: false, unowned: true });
    if (by === "owner") {
      legend.replaceChildren(
        count(all.filter((cell) => cell.moved).length, "moved in the last rebalance", {
          owner: who,
          to: null,
          moved: true,
        }),
        count(all.filter((cell) => cell.to !== null).length, "moving (frame: new owner)", {
          owner: null,
          to: who,
          moved: false,
        }),
        unowned,
        ...(retired
          ? [count(retired, "that no member subscribes to", { owner: null, to: null, moved: false, unowned: false })]
          : []),
      );
    } else {
      const steps = SCALES[by].map((words, step) => [
        all.filter((cell) => cell.owner !== null && cell.heat === step).length,
        words,
        step,
      ]);
      const unknown = all.filter((cell) => cell.owner !== null && cell.heat === null).length;
      legend.replaceChildren(
        ...[...steps, [unknown, "unknown", null]]
          .filter(([n]) => n)
          .map(([n, words, step]) => count(n, words, { owner: who, to: null, moved: false, heat: step })),
        ...(none ? [unowned] : []),
      );
    }
  };
  const sample = (cell) => {
    const canvas = element("canvas", { width: 22, height: 22, "aria-hidden": "true" }),
      ink = colours();
    const plain = { of: () => ({ fill: ink.hatch, texture: 0, ink: "#fff", tag: "" }) };
    piece(
      canvas.getContext("2d"),
      1,
      1,
      20,
      20,
      cell,
      cell.owner !== null && cell.heat === undefined ? plain : looks,
      ink,
    );
    return element("i", {}, canvas);
  };
  const describe = (topic, at) => {
    const cell = topics()[topic]?.cells[at];
    if (!cell) return;
    const words = [
      `${cell.topic} ${cell.number}`,
      cell.owner === null
        ? cell.to === null
          ? cell.retired
            ? "no member subscribes to it"
            : "has no owner"
          : `goes to ${called(cell.to)}`
        : `owned by ${called(cell.owner)}`,
    ];
    if (cell.owner !== null && cell.to !== null) words.push(`goes to ${called(cell.to)} once it is released`);
    if (cell.moved) words.push(`moved from ${cell.from}`);
    if (state.lag)
      words.push(
        `lag ${lagOf(cell) === null ? "unknown" : whole(lagOf(cell))}${lagOf(cell) ? `, ${span(ageOf(cell))}` : ""}`,
      );
    text.textContent = words.join(" · ");
  };
  box.addEventListener("keydown", (event) => {
    const shown = topics();
    if (!shown.length) return;
    let [topic, at] = cursor ?? [0, 0];
    const columns = grids[topic].grid.columns;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key in steps) at += cursor ? steps[event.key] : 0;
    else if (event.key === "Home") at = 0;
    else if (event.key === "End") at = shown[topic].cells.length - 1;
    else if (event.key === "PageDown") {
      topic = Math.min(topic + 1, shown.length - 1);
      at = 0;
    } else if (event.key === "PageUp") {
      topic = Math.max(topic - 1, 0);
      at = 0;
    } else if (event.key === "Escape") {
      cursor = null;
      draw();
      return;
    } else return;
    event.preventDefault();
    if (at < 0 && topic > 0) {
      topic -= 1;
      at = shown[topic].cells.length - 1;
    }
    if (at >= shown[topic].cells.length && topic < shown.length - 1) {
      topic += 1;
      at = 0;
    }
    at = Math.max(0, Math.min(at, shown[topic].cells.length - 1));
    cursor = [topic, at];
    draw();
    describe(topic, at);
    // in narrow windows the map scrolls
    const { canvas, y, columns: wide } = grids[topic].grid,
      top = canvas.offsetTop + Math.floor(at / wide) * y;
    if (top < box.scrollTop || top + y > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  });
  const empty = element("p", { class: "muted", hidden: true }, "No partitions."),
    node = element("div", { class: "map" }, empty, legend, box, text);
  const show = () => {
    const none = !topics().length;
    empty.hidden = !none;
    for (const each of [chooser, legend, box, text]) each.hidden = none;
  };
  return {
    node,
    chooser,
    update: () => {
      show();
      build();
      draw();
    },
    draw,
  };
};
