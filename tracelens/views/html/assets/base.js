// Data access, formatting, colours, tooltip and the frame that every chart shares.
const data = JSON.parse(document.getElementById("data").textContent);
// Asked of the page, so that no address stands in it, not even that of a namespace.
const SVG = document.getElementById("namespace").namespaceURI;

function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}
function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}
function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  // Text only ever enters as a text node, so names from a capture cannot become markup.
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

class Frame {
  constructor(name) {
    this.name = name;
    this.source = data.tables[name];
    this.height = this.source.rows;
    this.columns = this.source.columns;
    this.byName = new Map(this.columns.map((column) => [column.name, column]));
  }
  has(name) { return this.byName.has(name); }
  value(name, row) { return valueOf(this.byName.get(name), row); }
  text(name, row) { return textOf(this.byName.get(name), valueOf(this.byName.get(name), row)); }
  withUnit(name, value) {
    const column = this.byName.get(name), text = textOf(column, value);
    return column.unit && text !== "-" ? `${text} ${column.unit}` : text;
  }
  where(name, value) {
    const rows = [];
    for (let row = 0; row < this.height; row++) if (this.value(name, row) === value) rows.push(row);
    return rows;
  }
  all() { return Array.from({ length: this.height }, (_, row) => row); }
}
const frames = new Map();
function frame(name) {
  if (!data.tables[name]) return null;
  if (!frames.has(name)) frames.set(name, new Frame(name));
  return frames.get(name);
}
function valueOf(column, row) {
  const value = column.v[row];
  return column.d && value !== null ? column.d[value] : value;
}
function textOf(column, value) {
  if (value === null || value === undefined) return "-";
  if (column.type === "n") return column.decimals < 0 ? String(+value.toPrecision(2)) : number(value / column.divisor, column.decimals);
  if (column.type === "b") return value ? "yes" : "no";
  return shown(String(value));
}
function number(value, decimals) {
  const fixed = value.toFixed(decimals);
  const [whole, rest] = fixed.split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const text = rest ? `${grouped}.${rest}` : grouped;
  return /^-[0.,]*$/.test(text) ? text.slice(1) : text;
}
// Nothing without ink: a control or a bidirectional override in a name is shown as an escape.
function shown(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (character) => {
    const code = character.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
function shorten(text, length) {
  if (text.length <= length) return text;
  const head = Math.ceil((length - 1) * 0.6);
  return `${text.slice(0, head)}…${text.slice(text.length - (length - 1 - head))}`;
}
function time(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return `${number(ns, 0)} ns`;
  if (size < 1e6) return `${number(ns / 1e3, size < 1e5 ? 2 : 1)} us`;
  return `${number(ns / 1e6, 3)} ms`;
}
function word(name) { return String(name).replace(/_ns$/, "").replace(/_/g, " "); }

function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function onColour(colour) {
  const [r, g, b] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16) / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.25 ? "#12161c" : "#ffffff";
}

// A bucket keeps its colour through the whole page; the collectives and idle have theirs reserved.
const PALETTES = {
  split: { wait_ns: "5/", transfer_ns: "5", unsplit_ns: "5", hidden_ns: "11" },
  cause: { host_late: "1", launch_latency: "3", in_graph: "2", back_to_back: "4", dependency: "7", step_boundary: "0", unknown: "11", idle: "idle" },
  bucket: null,
};
const FREE = [0, 4, 1, 3, 2, 7, 9, 6, 8, 10, 12, 13, 11];
let nextFree = 0;
function bucketPalette() {
  if (PALETTES.bucket) return PALETTES.bucket;
  const totals = new Map();
  for (const name of ["buckets", "step_buckets"]) {
    const table = frame(name);
    if (!table) continue;
    for (let row = 0; row < table.height; row++) {
      const bucket = table.value("bucket", row);
      totals.set(bucket, (totals.get(bucket) || 0) + table.value("elapsed_ns", row));
    }
  }
  const palette = { idle: "idle" };
  for (const name of totals.keys()) if (/collective|comm|nccl|all_?reduce/i.test(name) && !Object.values(palette).includes("5")) palette[name] = "5";
  for (const [name] of [...totals].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))) {
    if (!(name in palette)) palette[name] = String(FREE[nextFree++ % FREE.length]);
  }
  PALETTES.bucket = palette;
  return palette;
}
// A fill is a colour variable, "idle", or a colour with "/" for hatching.
function fillOf(palette, key, index) {
  if (palette !== "bucket") return (PALETTES[palette] || {})[key] || String(index % 14);
  const known = bucketPalette();
  if (!(key in known)) known[key] = String(FREE[nextFree++ % FREE.length]);
  return known[key];
}
function colourOf(fill) { return css(fill === "idle" ? "--idle" : `--c${fill.replace("/", "")}`); }
let patternCount = 0;
function svgFill(defs, fill) {
  if (fill !== "idle" && !fill.endsWith("/")) return colourOf(fill);
  const id = `hatch${patternCount++}`;
  const colour = colourOf(fill);
  defs.append(svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, fill: colour, "fill-opacity": fill === "idle" ? 0.28 : 0.34 }),
    svg("rect", { width: 2, height: 6, fill: colour, "fill-opacity": fill === "idle" ? 0.7 : 0.95 })));
  return `url(#${id})`;
}
function swatch(fill) {
  // Variables, not their values: a swatch follows the theme by itself.
  const colour = `var(${fill === "idle" ? "--idle" : `--c${fill.replace("/", "")}`})`;
  const hatched = fill === "idle" || fill.endsWith("/");
  const style = hatched ? `background:repeating-linear-gradient(45deg, ${colour} 0 2px, color-mix(in srgb, ${colour} 33%, transparent) 2px 5px)` : `background:${colour}`;
  return el("span", { class: "swatch", style });
}

const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18}px`;
}
function hideTip() { tip.hidden = true; }

// Ticks at 1, 2 or 5 times a power of ten; about `count` of them.
function ticks(low, high, count) {
  const span = high - low || 1, raw = span / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return found;
}
function scaleFor(largest) {
  const size = Math.abs(largest);
  if (size < 1e3) return { unit: "ns", divisor: 1 };
  return size < 1e6 ? { unit: "us", divisor: 1e3 } : { unit: "ms", divisor: 1e6 };
}
// All digits that the value has: neighbours on an axis of little span differ in the last ones alone.
function tickText(value) {
  let decimals = 0;
  while (decimals < 9 && Math.abs(+value.toFixed(decimals) - value) > Math.abs(value) * 1e-9) decimals++;
  return number(value, decimals);
}
function timeAxis(root, low, high, toX, top, bottom, width) {
  const { unit, divisor } = scaleFor(high);
  const shownTicks = ticks(low / divisor, high / divisor, Math.max(2, Math.floor(width / 110)));
  shownTicks.forEach((value, index) => {
    const x = toX(value * divisor);
    root.append(svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }));
    root.append(svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, tickText(value) + (index === shownTicks.length - 1 ? ` ${unit}` : "")));
  });
}

// One chart in its figure: redrawn when the width or the theme changes; marks answer the pointer and the arrow keys.
const redraws = [];
function plot(parent, label, draw) {
  const node = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${label}. Arrow keys read the marks; the numbers are in the table below.` });
  parent.append(node);
  let marks = [], at = -1, width = 0;
  const redraw = () => {
    width = Math.floor(node.clientWidth);
    if (width < 40) return;
    node.replaceChildren();
    marks = draw(node, width) || [];
    at = -1;
  };
  const point = (index) => {
    marks.forEach((mark) => mark.node && mark.node.classList.remove("on"));
    at = index;
    const mark = marks[at], box = node.getBoundingClientRect();
    if (mark.node) mark.node.classList.add("on");
    showTip(mark.text, box.left + mark.x, box.top + mark.y);
  };
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { hideTip(); return; }
    if (!marks.length || event.defaultPrevented) return;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: marks.columns || 1, ArrowUp: -(marks.columns || 1) }[event.key];
    if (event.key === "Home") point(0);
    else if (event.key === "End") point(marks.length - 1);
    else if (step) point(Math.max(0, Math.min(marks.length - 1, at < 0 ? 0 : at + step)));
    else return;
    event.preventDefault();
  });
  node.addEventListener("blur", hideTip);
  node.addEventListener("pointerleave", hideTip);
  new ResizeObserver(() => { if (Math.abs(Math.floor(node.clientWidth) - width) > 1) redraw(); }).observe(node);
  redraws.push(redraw);
  redraw();
  return { node, redraw };
}
function hover(mark, text) {
  mark.addEventListener("pointermove", (event) => showTip(text, event.clientX, event.clientY));
  mark.addEventListener("pointerleave", hideTip);
}
function legend(parent, entries, toggled) {
  const list = el("ul", { class: "legend" });
  for (const { key, label, fill, on } of entries) {
    list.append(el("li", {}, toggled === null ? el("span", {}, swatch(fill), label) : el("button", { type: "button", "aria-pressed": String(on !== false), title: "Show or hide", onclick: () => toggled(key) }, swatch(fill), label)));
  }
  parent.append(list);
  return list;
}
function tabs(parent, labels, chosen) {
  if (labels.length < 2) return;
  const list = el("div", { class: "tabs tools", role: "tablist" });
  labels.forEach((label, index) => {
    list.append(el("button", {
      type: "button", role: "tab", "aria-selected": String(index === 0),
      onclick: () => {
        [...list.children].forEach((button, other) => button.setAttribute("aria-selected", String(other === index)));
        chosen(index);
      },
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = list.children[(index + step + labels.length) % labels.length];
        next.focus();
        next.click();
        event.preventDefault();
      },
    }, label));
  });
  parent.append(list);
}
