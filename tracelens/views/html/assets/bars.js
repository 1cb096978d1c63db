// Horizontal bars: stacked by series, diverging changes, and boxes of a distribution.
function stackRows(table, block, rowsWanted) {
  const series = [], byKey = new Map(), categories = [], values = new Map();
  const add = (category, key, value) => {
    if (!byKey.has(key)) { byKey.set(key, series.length); series.push({ key, total: 0 }); }
    if (!values.has(category)) { values.set(category, new Map()); categories.push(category); }
    if (value === null || value === undefined) return;
    values.get(category).set(key, (values.get(category).get(key) || 0) + value);
    series[byKey.get(key)].total += value;
  };
  for (const row of rowsWanted) {
    const category = table.value(block.category, row);
    if (block.columns) for (const name of block.columns) add(category, name, table.value(name, row));
    else if (!(block.leave || []).includes(table.value(block.series, row))) add(category, table.value(block.series, row), table.value(block.value, row));
  }
  if (!block.columns) series.sort((a, b) => (a.key === block.last) - (b.key === block.last) || b.total - a.total || (a.key < b.key ? -1 : 1));
  return { series: series.filter((item) => item.total > 0), categories, values };
}

function stack(figure, bar, block) {
  let chosen = 0;
  const hidden = new Set();
  const views = block.views || [{ table: block.table }];
  const palette = block.palette || "bucket";
  tabs(bar, views.map((view) => view.label), (index) => { chosen = index; refresh(); });
  const keys = el("div"), holder = el("div"), below = el("div");
  figure.append(keys, holder, below);
  let drawn = null;
  const table = () => frame(views[chosen].table);
  const refresh = () => {
    const source = table();
    const content = stackRows(source, block, source.all());
    keys.replaceChildren();
    legend(keys, content.series.map((item, index) => ({ key: item.key, label: word(item.key), fill: fillOf(palette, item.key, index), on: !hidden.has(item.key) })), (key) => { hidden.has(key) ? hidden.delete(key) : hidden.add(key); refresh(); });
    if (drawn) drawn.redraw();
    below.replaceChildren();
    numbers(below, source, { title: block.title, group: block.category });
  };
  drawn = plot(holder, block.title, (node, width) => {
    const source = table();
    const { series, categories, values } = stackRows(source, block, source.all());
    const visible = series.filter((item) => !hidden.has(item.key));
    const totals = categories.map((category) => visible.reduce((sum, item) => sum + (values.get(category).get(item.key) || 0), 0));
    const most = Math.max(...totals, 1);
    const left = 64, right = 92, thick = categories.length > 24 ? 12 : 22, pitch = thick + (categories.length > 24 ? 4 : 9);
    const top = 4, bottom = top + categories.length * pitch, height = bottom + 24;
    const toX = (value) => left + (value / most) * (width - left - right);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    const defs = svg("defs");
    root.append(defs);
    timeAxis(root, 0, most, toX, top, bottom, width - left - right);
    const marks = [];
    const fills = new Map(series.map((item, index) => [item.key, fillOf(palette, item.key, index)]));
    const paints = new Map([...fills].map(([key, fill]) => [key, svgFill(defs, fill)]));
    categories.forEach((category, line) => {
      const y = top + line * pitch + (pitch - thick) / 2;
      const name = `${block.category} ${category === null ? "all" : category}`;
      root.append(svg("text", { class: "strong", x: left - 10, y: y + thick / 2 + 4, "text-anchor": "end" }, name));
      let from = 0;
      for (const item of visible) {
        const value = values.get(category).get(item.key) || 0;
        if (value <= 0) continue;
        const x = toX(from), w = Math.max(0.5, toX(from + value) - x - 1);
        const share = number((100 * value) / totals[line], 1);
        const text = `${name}\n${word(item.key)}: ${time(value)} (${share} %)`;
        const mark = svg("rect", { class: "mark", x, y, width: w, height: thick, rx: 2, fill: paints.get(item.key) });
        hover(mark, text);
        root.append(mark);
        if (w > 44 && thick > 16) {
          const fill = fills.get(item.key);
          const hatched = fill === "idle" || fill.endsWith("/");
          const label = w > 30 + 7 * word(item.key).length + 20 ? `${word(item.key)} ${number((100 * value) / totals[line], 0)} %` : `${number((100 * value) / totals[line], 0)} %`;
          const ink = hatched ? css("--ink") : onColour(colourOf(fill));
          root.append(svg("text", { class: "inside", x: x + w / 2, y: y + thick / 2 + 4, "text-anchor": "middle", style: `fill:${ink}${hatched ? `;paint-order:stroke;stroke:${css("--card")};stroke-width:3px` : ""}` }, label));
        }
        marks.push({ x: x + w / 2, y: y + thick, text, node: mark });
        from += value;
      }
      root.append(svg("text", { class: "strong", x: toX(from) + 8, y: y + thick / 2 + 4 }, time(from)));
    });
    root.append(svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }));
    node.append(root);
    return marks;
  });
  refresh();
}

function delta(figure, bar, block) {
  const table = frame(block.table);
  const holder = el("div");
  figure.append(holder);
  const order = table.all().filter((row) => table.value(block.value, row) !== null)
    .sort((a, b) => Math.abs(table.value(block.value, b)) - Math.abs(table.value(block.value, a)) || a - b).slice(0, block.limit || 24);
  plot(holder, block.title, (node, width) => {
    const low = (row) => (table.has("ci_low_ns") ? table.value("ci_low_ns", row) : null);
    const high = (row) => (table.has("ci_high_ns") ? table.value("ci_high_ns", row) : null);
    const extremes = order.flatMap((row) => [table.value(block.value, row), low(row), high(row)]).filter((value) => value !== null);
    const least = Math.min(0, ...extremes), most = Math.max(0, ...extremes);
    const left = Math.min(300, Math.max(110, width * 0.28)), right = 96, thick = 18, pitch = 27, top = 4, bottom = top + order.length * pitch, height = bottom + 24;
    const toX = (value) => left + 8 + ((value - least) / (most - least || 1)) * (width - left - right - 8);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    timeAxis(root, least, most, toX, top, bottom, width - left - right);
    const marks = [];
    order.forEach((row, line) => {
      const value = table.value(block.value, row), y = top + line * pitch + (pitch - thick) / 2;
      const significant = table.has("significant") ? table.value("significant", row) : null;
      const colour = significant === false ? css("--idle") : css(value > 0 ? "--c5" : "--c0");
      const raw = table.text(block.category, row), name = /[<(:]/.test(raw) || block.table.endsWith("kernels") ? raw : word(raw);
      const x0 = toX(Math.min(0, value)), x1 = toX(Math.max(0, value));
      const verdict = significant === null ? "no interval" : significant ? "significant" : "within noise";
      const text = `${name}\n${value > 0 ? "+" : ""}${time(value)} per step (${verdict})${table.has("status") && table.value("status", row) !== "same" ? `\n${word(table.text("status", row))}` : ""}`;
      const mark = svg("rect", { class: "mark", x: x0, y, width: Math.max(1, x1 - x0), height: thick, rx: 2, fill: colour, "fill-opacity": significant === null ? 0.55 : 1 });
      hover(mark, text);
      root.append(svg("text", { class: "strong", x: left, y: y + thick / 2 + 4, "text-anchor": "end" }, shorten(name, Math.floor(left / 6.6))), mark);
      let end = x1;
      if (low(row) !== null && high(row) !== null) {
        const middle = y + thick / 2;
        root.append(svg("path", { d: `M${toX(low(row))} ${middle}H${toX(high(row))}M${toX(low(row))} ${middle - 4}v8M${toX(high(row))} ${middle - 4}v8`, stroke: css("--ink"), "stroke-width": 1.2, fill: "none" }));
        end = Math.max(end, toX(high(row)));
      }
      root.append(svg("text", { x: end + 7, y: y + thick / 2 + 4 }, `${value > 0 ? "+" : ""}${time(value)}`));
      marks.push({ x: (x0 + x1) / 2, y: y + thick, text, node: mark });
    });
    root.append(svg("line", { x1: toX(0), x2: toX(0), y1: top, y2: bottom, stroke: css("--soft") }));
    node.append(root);
    return marks;
  });
  figure.append(el("p", { class: "note" }, "Orange is slower, blue is faster, grey is within noise; pale where no interval could be given."));
  numbers(figure, table, { title: block.title });
}

// Five quantiles a row: a line from p05 to p95, a box from p25 to p75, a tick at the median.
function box(figure, bar, block) {
  const table = frame(block.table);
  const holder = el("div");
  figure.append(holder);
  plot(holder, block.title, (node, width) => {
    const rows = table.all().filter((row) => table.value("p50_ns", row) !== null);
    const most = Math.max(...rows.map((row) => table.value("p95_ns", row)), 1);
    const left = 64, right = 24, pitch = 28, thick = 16, top = 4, bottom = top + rows.length * pitch, height = bottom + 24;
    const toX = (value) => left + (value / most) * (width - left - right);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    timeAxis(root, 0, most, toX, top, bottom, width - left - right);
    const marks = [];
    rows.forEach((row, line) => {
      const at = (name) => toX(table.value(name, row));
      const middle = top + line * pitch + pitch / 2;
      const text = `rank ${table.text("rank", row)}\n` + ["p05", "p25", "p50", "p75", "p95", "max"].filter((name) => table.has(`${name}_ns`)).map((name) => `${name}: ${time(table.value(`${name}_ns`, row))}`).join("\n");
      root.append(svg("text", { class: "strong", x: left - 10, y: middle + 4, "text-anchor": "end" }, `rank ${table.text("rank", row)}`));
      root.append(svg("path", { d: `M${at("p05_ns")} ${middle}H${at("p95_ns")}M${at("p05_ns")} ${middle - 4}v8M${at("p95_ns")} ${middle - 4}v8`, stroke: css("--c0"), fill: "none" }));
      const mark = svg("rect", { class: "mark", x: at("p25_ns"), y: middle - thick / 2, width: Math.max(1.5, at("p75_ns") - at("p25_ns")), height: thick, rx: 2, fill: css("--c4") });
      hover(mark, text);
      root.append(mark, svg("line", { x1: at("p50_ns"), x2: at("p50_ns"), y1: middle - thick / 2, y2: middle + thick / 2, stroke: css("--ink"), "stroke-width": 2 }));
      const area = svg("rect", { x: left, y: middle - pitch / 2, width: width - left - right, height: pitch, fill: "transparent" });
      hover(area, text);
      root.append(area);
      marks.push({ x: at("p50_ns"), y: middle + 8, text, node: mark });
    });
    root.append(svg("line", { class: "axis", x1: left, x2: left, y1: top, y2: bottom }));
    node.append(root);
    return marks;
  });
  figure.append(el("p", { class: "note" }, "Line: 5th to 95th percentile. Box: 25th to 75th. Tick: median. Over all matched collectives."));
  numbers(figure, table, { title: block.title });
}
