// A heat-map: rows are ranks, columns steps or positions; one hue from faint to strong, so lightness alone carries it.
const HEAT = { light: ["#f1f5f9", "#b9d3ea", "#5b9bd0", "#1d5fa0", "#0a2f5c"], dark: ["#1a212a", "#1f4163", "#2f74ad", "#78b8ea", "#e3f2ff"] };

function heatColour(share) {
  const stops = HEAT[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at)), part = at - low;
  const channel = (text, index) => parseInt(text.slice(1 + 2 * index, 3 + 2 * index), 16);
  return `rgb(${[0, 1, 2].map((index) => Math.round(channel(stops[low], index) * (1 - part) + channel(stops[low + 1], index) * part)).join(",")})`;
}

function heat(figure, bar, block) {
  const table = frame(block.table);
  const holder = el("div");
  figure.append(holder);
  const rowKeys = [...new Set(table.all().map((row) => table.value(block.y, row)))].sort((a, b) => a - b);
  const columnKeys = [...new Set(table.all().map((row) => table.value(block.x, row)))].sort((a, b) => a - b);
  const rowAt = new Map(rowKeys.map((key, index) => [key, index])), columnAt = new Map(columnKeys.map((key, index) => [key, index]));
  const grid = new Array(rowKeys.length * columnKeys.length).fill(-1);
  for (let row = 0; row < table.height; row++) grid[rowAt.get(table.value(block.y, row)) * columnKeys.length + columnAt.get(table.value(block.x, row))] = row;
  const known = grid.filter((row) => row >= 0).map((row) => table.value(block.value, row)).filter((value) => value !== null).sort((a, b) => a - b);
  const top99 = known.length ? known[Math.min(known.length - 1, Math.floor(known.length * 0.99))] || known[known.length - 1] || 1 : 1;
  const describe = (row, r, c) => {
    const last = block.x2 && row >= 0 ? table.value(block.x2, row) : null;
    const where = last !== null && last !== columnKeys[c] ? `${word(block.x).replace("first ", "")}s ${columnKeys[c]} to ${last}` : `${word(block.x).replace("first ", "")} ${columnKeys[c]}`;
    const what = row >= 0 && table.has("collective") ? ` (${word(table.text("collective", row))})` : "";
    return `${block.y} ${rowKeys[r]}, ${where}${what}\n${row < 0 || table.value(block.value, row) === null ? "not measured" : `${word(block.value)}: ${time(table.value(block.value, row))}`}`;
  };
  plot(holder, block.title, (node, width) => {
    const left = 64, right = 16, tall = Math.max(10, Math.min(26, 320 / rowKeys.length)), top = 6, bottom = top + tall * rowKeys.length, height = bottom + 78;
    const wide = (width - left - right) / columnKeys.length;
    const canvas = el("canvas");
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round((width - left - right) * ratio);
    canvas.height = Math.round((bottom - top) * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const gap = wide > 6 ? 1 : 0;
    for (let r = 0; r < rowKeys.length; r++) for (let c = 0; c < columnKeys.length; c++) {
      const row = grid[r * columnKeys.length + c], value = row < 0 ? null : table.value(block.value, row);
      if (value === null) continue;
      pen.fillStyle = heatColour(value / top99);
      pen.fillRect(c * wide, r * tall, wide - gap + (gap ? 0 : 0.4), tall - 1);
    }
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    rowKeys.forEach((key, index) => { if (tall >= 14 || index % 2 === 0) root.append(svg("text", { class: "strong", x: left - 10, y: top + (index + 0.5) * tall + 4, "text-anchor": "end" }, `${block.y} ${key}`)); });
    for (const value of ticks(0, columnKeys.length - 1, Math.max(2, Math.floor(width / 110)))) if (Number.isInteger(value)) root.append(svg("text", { x: left + (value + 0.5) * wide, y: bottom + 16, "text-anchor": "middle" }, String(columnKeys[value])));
    root.append(svg("text", { x: left + (width - left - right) / 2, y: bottom + 34, "text-anchor": "middle" }, word(block.x).replace("first ", "")));
    const key = Math.min(260, width - left - right - 120);
    for (let index = 0; index < 64; index++) root.append(svg("rect", { x: left + (index * key) / 64, y: bottom + 50, width: key / 64 + 0.5, height: 10, fill: heatColour(index / 63) }));
    root.append(svg("text", { x: left, y: bottom + 74 }, "0"), svg("text", { x: left + key, y: bottom + 74, "text-anchor": "end" }, `${time(top99)} and above`), svg("text", { x: left + key + 10, y: bottom + 59 }, word(block.value)));
    // A picture inside the drawing scales with it on paper; a canvas over it would not.
    const picture = svg("image", { href: canvas.toDataURL(), x: left, y: top, width: width - left - right, height: bottom - top, preserveAspectRatio: "none" });
    root.append(picture);
    node.append(root);
    const marks = [];
    marks.columns = columnKeys.length;
    picture.addEventListener("pointermove", (event) => {
      const place = picture.getBoundingClientRect();
      const c = Math.min(columnKeys.length - 1, Math.max(0, Math.floor((event.clientX - place.left) / wide))), r = Math.min(rowKeys.length - 1, Math.max(0, Math.floor((event.clientY - place.top) / tall)));
      showTip(describe(grid[r * columnKeys.length + c], r, c), event.clientX, event.clientY);
    });
    picture.addEventListener("pointerleave", hideTip);
    for (let r = 0; r < rowKeys.length; r++) for (let c = 0; c < columnKeys.length; c++) marks.push({ x: left + (c + 0.5) * wide, y: top + (r + 0.5) * tall, text: describe(grid[r * columnKeys.length + c], r, c) });
    return marks;
  });
  numbers(figure, table, { title: block.title });
}
