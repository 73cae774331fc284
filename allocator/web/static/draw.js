// Draws partitions as cells of a canvas, coloured by owner, lag or age. Colour is never the only sign: each member also has a
// texture and, if there is space, a tag. The text under the grids describes the chosen cell.

// Okabe and Ito's colours, which colour-blind people can distinguish
const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const TEXTURES = 5;
const SHADES = [0, -0.35, 0.45]; // towards black or white

const shade = (hex, by) => {
  const to = by < 0 ? 0 : 255;
  const part = (at) => Math.round(parseInt(hex.slice(at, at + 2), 16) * (1 - Math.abs(by)) + to * Math.abs(by));
  return `rgb(${part(1)} ${part(3)} ${part(5)})`;
};
const luminance = (hex, by) => {
  const to = by < 0 ? 0 : 255;
  const part = (at) => (parseInt(hex.slice(at, at + 2), 16) * (1 - Math.abs(by)) + to * Math.abs(by)) / 255;
  return 0.21 * part(1) ** 2.2 + 0.72 * part(3) ** 2.2 + 0.07 * part(5) ** 2.2;
};

const LOOKS = HUES.length * TEXTURES * SHADES.length;
const hashed = (text) => {
  let hash = 0;
  for (const each of text) hash = (Math.imul(hash, 31) + each.codePointAt(0)) >>> 0;
  return hash % LOOKS;
};

// The colour and texture of a member come from its name, so that they outlive a reload; of equal ones, the later member gets
// the next free ones, and few members get different colours. They stay while it exists, even if other members join or leave
export class Looks {
  constructor() {
    this.slots = new Map();
    this.names = new Map();
  }
  keep(members) {
    this.names = new Map(members.map(({ id, name }) => [id, name]));
    for (const id of this.slots.keys()) if (!this.names.has(id)) this.slots.delete(id);
    const used = new Set(this.slots.values());
    for (const { id, name } of members) {
      if (this.slots.has(id)) continue;
      let slot = hashed(name);
      const taken = () =>
        used.has(slot) ||
        (used.size < HUES.length && [...used].some((other) => other % HUES.length === slot % HUES.length));
      while (used.size < LOOKS && taken()) slot = (slot + 1) % LOOKS;
      used.add(slot);
      this.slots.set(id, slot);
    }
  }
  of(id) {
    const slot = this.slots.get(id) ?? 0;
    const hue = HUES[slot % HUES.length];
    const by = SHADES[Math.floor(slot / (HUES.length * TEXTURES)) % SHADES.length];
    const dark = luminance(hue, by) < 0.25;
    return {
      fill: shade(hue, by),
      texture: Math.floor(slot / HUES.length) % TEXTURES,
      ink: dark ? "#fff" : "#000",
      tag: initials(this.names.get(id) ?? ""),
    };
  }
}

// "billing-web1@host#3" -> "B1": the first letter, and the number of the name or else the first letter of its last word
export const initials = (name) => {
  const words = name
      .split("@")[0]
      .split(/[^\p{L}\p{N}]+/u)
      .filter(Boolean),
    last = words.at(-1) ?? "";
  const end = last.match(/[0-9]$/)?.[0] ?? (words.length > 1 ? last[0] : "");
  return `${words[0]?.[0] ?? "?"}${end}`.toUpperCase();
};

export const paint = (c, x, y, size, look, height = size) => {
  c.fillStyle = look.fill;
  c.fillRect(x, y, size, height);
  if (!look.texture) return;
  c.save();
  c.beginPath();
  c.rect(x, y, size, height);
  c.clip();
  c.strokeStyle = c.fillStyle = look.ink;
  c.globalAlpha *= height > 20 ? 0.38 : 0.5;
  c.lineWidth = Math.max(1, height / 12);
  const step = Math.max(3, Math.min(10, height / 3));
  c.beginPath();
  if (look.texture === 1)
    for (let at = -height; at < size; at += step) {
      c.moveTo(x + at, y + height);
      c.lineTo(x + at + height, y);
    }
  if (look.texture === 2)
    for (let at = step / 2; at < height; at += step) {
      c.moveTo(x, y + at);
      c.lineTo(x + size, y + at);
    }
  if (look.texture === 3)
    for (let at = step / 2; at < size; at += step) {
      c.moveTo(x + at, y);
      c.lineTo(x + at, y + height);
    }
  if (look.texture === 4) {
    const d = Math.max(1, height / 9);
    for (let at = step / 2; at < size; at += step)
      for (let down = step / 2; down < height; down += step) c.rect(x + at - d, y + down - d, 2 * d, 2 * d);
    c.fill();
  } else c.stroke();
  c.restore();
};

// Returns the size of the largest cells with which all partitions are visible
export const sizeFor = (cells, width) => {
  const wide = Math.sqrt((width * 560) / Math.max(1, cells) / 1.25);
  return wide >= 26
    ? { width: wide >= 36 ? 36 : 28, height: wide >= 36 ? 36 : 28, gap: 2 }
    : { width: Math.max(5, Math.floor(wide)), height: Math.max(7, Math.floor(wide * 1.25)), gap: 1 };
};

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colours = () => ({
  ink: css("--ink"),
  bad: css("--bad"),
  hatch: css("--hatch"),
  card: css("--card"),
  focus: css("--focus"),
});
const alike = (a, b) =>
  a.owner === b.owner && a.to === b.to && a.moved === b.moved && a.unowned === b.unowned && a.heat === b.heat;

// The steps of a scale of lag or age, from light to dark so that colour-blind people can read it; unknown is hatched
const HEAT = ["#d7e8f5", "#9ecae1", "#4f9bca", "#e6a157", "#c8571b", "#7d1f0b"];
export const heatLook = (step, tag = "") =>
  step === null
    ? { fill: "#b9c0c8", texture: 1, ink: "#000", tag }
    : { fill: HEAT[step], texture: 0, ink: step === 2 || step === 3 || step < 2 ? "#000" : "#fff", tag };
const lookOf = (cell, looks) =>
  cell.owner === null ? null : cell.heat === undefined ? looks.of(cell.owner) : heatLook(cell.heat, cell.tag);

// One topic. `cells` is [{number, owner, to, from, moved, unowned}]; `owner` and `to` are member ids or null
export class Grid {
  constructor(canvas) {
    this.canvas = canvas;
    this.cells = [];
    this.columns = 1;
  }
  draw(cells, size, looks, { only = null, cursor = null } = {}) {
    this.cells = cells;
    this.size = size;
    const width = this.canvas.parentElement.clientWidth;
    // small cells touch each other, so that neighbours with the same owner form one area
    const x = (this.x = size.width + (size.gap > 1 ? size.gap : 0)),
      y = (this.y = size.height + size.gap);
    this.columns = Math.max(1, Math.floor((width + 1) / x));
    const rows = Math.ceil(cells.length / this.columns),
      ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round((rows * y + 1) * ratio);
    this.canvas.style.height = `${rows * y + 1}px`;
    const c = this.canvas.getContext("2d"),
      ink = colours();
    c.scale(ratio, ratio);
    for (let at = 0; at < cells.length;) {
      const row = Math.floor(at / this.columns),
        end = Math.min(cells.length, (row + 1) * this.columns);
      let next = at + 1;
      if (size.gap === 1) while (next < end && alike(cells[next], cells[at])) next += 1;
      c.globalAlpha = only !== null && cells[at].owner !== only && cells[at].to !== only ? 0.13 : 1;
      piece(
        c,
        (at % this.columns) * x,
        row * y,
        (next - at) * x - (x - size.width),
        size.height,
        cells[at],
        looks,
        ink,
        size.gap === 1 ? "" : String(cells[at].number),
      );
      if (size.gap === 1) {
        c.fillStyle = ink.card;
        c.fillRect(((next - 1) % this.columns) * x + size.width - 1, row * y, 1, size.height);
      }
      at = next;
    }
    c.globalAlpha = 1;
    if (cursor === null) return;
    const left = (cursor % this.columns) * x,
      top = Math.floor(cursor / this.columns) * y;
    for (const [colour, wide] of [
      [ink.card, 6],
      [ink.focus, 3],
    ]) {
      c.strokeStyle = colour;
      c.lineWidth = wide;
      c.strokeRect(left - 1, top - 1, size.width + 2, size.height + 2);
    }
  }
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.x),
      at = Math.floor((event.clientY - box.top) / this.y) * this.columns + column;
    return column >= 0 && column < this.columns && at >= 0 && at < this.cells.length ? at : null;
  }
}

// One cell, or several equal cells side by side
export const piece = (c, x, y, width, height, cell, looks, ink, label = "") => {
  const look = lookOf(cell, looks);
  if (look) {
    paint(c, x, y, width, look, height);
  } else if (cell.to !== null) {
    // between two owners
    paint(c, x, y, width, { fill: ink.card, texture: 1, ink: ink.hatch }, height);
  } else if (!cell.unowned) {
    // no member subscribes to it any more
    c.strokeStyle = ink.hatch;
    c.lineWidth = 1;
    c.strokeRect(x + 1, y + 1, width - 2, height - 2);
  } else {
    c.strokeStyle = ink.bad;
    c.lineWidth = height > 12 ? 2 : 1.5;
    c.strokeRect(x + 1, y + 1, width - 2, height - 2);
    c.beginPath();
    for (let at = x; at + 4 < x + width; at += height) {
      const to = Math.min(at + height, x + width);
      c.moveTo(at + 1, y + 1);
      c.lineTo(to - 1, y + height - 1);
      c.moveTo(to - 1, y + 1);
      c.lineTo(at + 1, y + height - 1);
    }
    c.stroke();
  }
  if (cell.to !== null) {
    c.strokeStyle = looks.of(cell.to).fill;
    c.lineWidth = Math.min(4, Math.max(2, height / 8));
    c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, width - c.lineWidth, height - c.lineWidth);
  }
  if (look) {
    c.textAlign = "center";
    c.textBaseline = "middle";
    const text = (words, weight, points, down) => {
      c.font = `${weight} ${points}px system-ui, sans-serif`;
      const wide = c.measureText(words).width + 4;
      if (wide + 3 > width || points > height) return;
      if (look.texture) {
        c.fillStyle = look.fill;
        c.fillRect(x + (width - wide) / 2, y + down - points / 2 - 1, wide, points + 2);
      }
      c.fillStyle = look.ink;
      c.fillText(words, x + width / 2, y + down);
    };
    if (label && height >= 34) {
      text(label, 600, 13, 14);
      text(look.tag, 400, 10, 27);
    } else text(look.tag, 600, Math.min(11, height), height / 2 + 0.5);
  }
  if (cell.moved) {
    // a bar on partitions that moved in the last rebalance
    const high = Math.max(2, Math.min(4, Math.round(height / 8)));
    c.fillStyle = ink.card;
    c.fillRect(x, y, width, high + 1);
    c.fillStyle = ink.ink;
    c.fillRect(x, y, width, high);
  }
};
