// Partitions as cells of a canvas, coloured by owner. Colour is never alone: each member also has a texture, and where
// there is room a tag; the text under the grids says of the chosen cell what the picture says.

// Okabe and Ito's colours, which colour-blind people tell apart
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

// A member keeps its look for as long as it is there, whoever comes and goes
export class Looks {
  constructor() { this.slots = new Map(); }
  keep(ids) {
    const present = new Set(ids);
    for (const id of this.slots.keys()) if (!present.has(id)) this.slots.delete(id);
    const used = new Set(this.slots.values());
    let next = 0;
    for (const id of ids) {
      if (this.slots.has(id)) continue;
      while (used.has(next)) next += 1;
      used.add(next);
      this.slots.set(id, next);
    }
  }
  of(id) {
    const slot = this.slots.get(id) ?? 0;
    const hue = HUES[slot % HUES.length];
    const by = SHADES[Math.floor(slot / (HUES.length * TEXTURES)) % SHADES.length];
    const dark = luminance(hue, by) < 0.25;
    return { fill: shade(hue, by), texture: Math.floor(slot / HUES.length) % TEXTURES, ink: dark ? "#fff" : "#000", tag: tagOf(slot) };
  }
}

const tagOf = (slot) => (slot < 26 ? "" : String.fromCharCode(64 + Math.floor(slot / 26))) + String.fromCharCode(65 + (slot % 26));

export const paint = (c, x, y, size, look, height = size) => {
  c.fillStyle = look.fill;
  c.fillRect(x, y, size, height);
  if (!look.texture) return;
  c.save();
  c.beginPath(); c.rect(x, y, size, height); c.clip();
  c.strokeStyle = c.fillStyle = look.ink; c.globalAlpha *= 0.55; c.lineWidth = Math.max(1, height / 12);
  const step = Math.max(3, height / 3);
  c.beginPath();
  if (look.texture === 1) for (let at = -height; at < size; at += step) { c.moveTo(x + at, y + height); c.lineTo(x + at + height, y); }
  if (look.texture === 2) for (let at = step / 2; at < height; at += step) { c.moveTo(x, y + at); c.lineTo(x + size, y + at); }
  if (look.texture === 3) for (let at = step / 2; at < size; at += step) { c.moveTo(x + at, y); c.lineTo(x + at, y + height); }
  if (look.texture === 4) {
    const d = Math.max(1, height / 9);
    for (let at = step / 2; at < size; at += step) for (let down = step / 2; down < height; down += step) c.rect(x + at - d, y + down - d, 2 * d, 2 * d);
    c.fill();
  } else c.stroke();
  c.restore();
};

export const sizeFor = (cells, width) => {
  const room = width < 500 ? 0.75 : 1;
  const size = cells <= 64 ? 36 : cells <= 300 ? 26 : cells <= 1200 ? 18 : cells <= 4000 ? 13 : 10;
  return Math.max(8, Math.round(size * room));
};

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One topic: `cells` is [{number, owner, to, from, moved, unowned}], owner and to being member ids or null
export class Grid {
  constructor(canvas) { this.canvas = canvas; this.cells = []; this.columns = 1; }
  draw(cells, size, looks, { only = null, cursor = null } = {}) {
    this.cells = cells;
    this.size = size;
    const width = this.canvas.parentElement.clientWidth;
    const pitch = (this.pitch = size + (size > 12 ? 2 : 1));
    this.columns = Math.max(1, Math.floor((width + 1) / pitch));
    const rows = Math.ceil(cells.length / this.columns);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(rows * pitch * ratio);
    this.canvas.style.height = `${rows * pitch}px`;
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.textAlign = "center"; c.textBaseline = "middle";
    const colours = { ink: css("--ink"), bad: css("--bad"), hatch: css("--hatch"), card: css("--card"), focus: css("--focus") };
    cells.forEach((cell, at) => {
      const x = (at % this.columns) * pitch, y = Math.floor(at / this.columns) * pitch;
      c.globalAlpha = only !== null && cell.owner !== only && cell.to !== only ? 0.13 : 1;
      this.cell(c, x, y, size, cell, looks, colours);
      c.globalAlpha = 1;
      if (cursor === at) {
        c.strokeStyle = colours.card; c.lineWidth = 5; c.strokeRect(x - 1, y - 1, size + 2, size + 2);
        c.strokeStyle = colours.focus; c.lineWidth = 3; c.strokeRect(x - 1, y - 1, size + 2, size + 2);
      }
    });
  }
  cell(c, x, y, size, cell, looks, colours) {
    const look = cell.owner === null ? null : looks.of(cell.owner);
    if (look) {
      paint(c, x, y, size, look);
    } else if (cell.to !== null) { // between two owners
      paint(c, x, y, size, { fill: colours.card, texture: 1, ink: colours.hatch });
    } else {
      c.strokeStyle = colours.bad; c.lineWidth = size > 12 ? 2 : 1.5;
      c.strokeRect(x + 1, y + 1, size - 2, size - 2);
      c.beginPath(); c.moveTo(x + 2, y + 2); c.lineTo(x + size - 2, y + size - 2);
      c.moveTo(x + size - 2, y + 2); c.lineTo(x + 2, y + size - 2); c.stroke();
    }
    if (cell.to !== null) {
      c.strokeStyle = looks.of(cell.to).fill; c.lineWidth = Math.max(2, size / 8);
      c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, size - c.lineWidth, size - c.lineWidth);
    }
    if (look && size >= 26) {
      const text = (words, font, down) => {
        c.font = font;
        const wide = c.measureText(words).width + 4, high = parseInt(font.match(/(\d+)px/)[1], 10) + 2;
        if (look.texture) { c.fillStyle = look.fill; c.fillRect(x + (size - wide) / 2, y + down - high / 2, wide, high); }
        c.fillStyle = look.ink; c.fillText(words, x + size / 2, y + down);
      };
      if (size >= 34) {
        text(String(cell.number), "600 13px system-ui, sans-serif", 13);
        text(look.tag, "10px system-ui, sans-serif", 27);
      } else text(look.tag, "600 11px system-ui, sans-serif", size / 2);
    }
    if (cell.moved) { // the corner of what changed hands in the last rebalance
      const d = Math.max(4, size / 3);
      c.beginPath(); c.moveTo(x + size - d, y); c.lineTo(x + size, y); c.lineTo(x + size, y + d); c.closePath();
      c.fillStyle = colours.ink; c.fill();
      c.strokeStyle = colours.card; c.lineWidth = 1; c.beginPath(); c.moveTo(x + size - d - 1, y); c.lineTo(x + size, y + d + 1); c.stroke();
    }
  }
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.pitch), row = Math.floor((event.clientY - box.top) / this.pitch);
    const at = row * this.columns + column;
    return column >= 0 && column < this.columns && at >= 0 && at < this.cells.length ? at : null;
  }
}
