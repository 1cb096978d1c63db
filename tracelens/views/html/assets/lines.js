// Points over steps with percentile lines, and measured against predicted scaling.
const SHAPES = {
  decode: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  prefill: (x, y, r) => `M${x} ${y - r * 1.3}l${r * 1.2} ${r * 2.1}h${-r * 2.4}z`,
  mixed: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  other: (x, y, r) => `M${x} ${y - r * 1.4}l${r * 1.3} ${r * 1.4}l${-r * 1.3} ${r * 1.4}l${-r * 1.3} ${-r * 1.4}z`,
};
const PHASE_FILL = { decode: "0", prefill: "1", mixed: "7", other: "2" };

function points(figure, bar, block) {
  const table = frame(block.table), summary = block.lines && frame(block.lines);
  let range = null, only = null;
  const phases = [...new Set(table.all().map((row) => table.value(block.series, row)))];
  // Phases differ by an order of magnitude and are never mixed: one at a time, the main one first.
  const count = (phase) => table.all().reduce((sum, row) => sum + (table.value(block.series, row) === phase), 0);
  const ordered = [...phases].sort((a, b) => (b === "decode") - (a === "decode") || count(b) - count(a));
  if (ordered.length > 1) only = ordered[0];
  tabs(bar, (ordered.length > 1 ? [...ordered, "All"] : ordered).map(String), (index) => { only = index < ordered.length ? ordered[index] : null; range = null; refresh(); });
  const hidden = { has: (phase) => only !== null && phase !== only };
  const keys = el("div"), holder = el("div"), note = el("p", { class: "note" });
  figure.append(keys, holder, note);
  const reset = el("button", { type: "button", class: "tools", hidden: true, onclick: () => { range = null; refresh(); } }, "Reset zoom");
  bar.append(reset);
  let drawn = null;
  const refresh = () => {
    keys.replaceChildren();
    if (only === null && ordered.length > 1) legend(keys, phases.map((phase) => ({ key: phase, label: String(phase), fill: PHASE_FILL[phase] || "11" })), null);
    reset.hidden = range === null;
    if (drawn) drawn.redraw();
  };
  drawn = plot(holder, block.title, (node, width) => {
    const rows = table.all().filter((row) => !hidden.has(table.value(block.series, row)) && table.value(block.y, row) !== null && (!range || (table.value(block.x, row) >= range[0] && table.value(block.x, row) <= range[1])));
    const left = 64, right = 74, top = 10, height = 300, bottom = height - 40;
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    node.append(root);
    if (!rows.length) { root.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to show")); return []; }
    const xs = rows.map((row) => table.value(block.x, row)), ys = rows.map((row) => table.value(block.y, row));
    const x0 = xs.reduce((a, b) => Math.min(a, b)), x1 = Math.max(xs.reduce((a, b) => Math.max(a, b)), x0 + 1);
    // Steps outside the statistics must not set the scale; those beyond it are drawn on its edge.
    const isHollow = (row) => (table.has("complete") && table.value("complete", row) === false) || (table.has("warm_up") && table.value("warm_up", row) === true);
    const counted = ys.filter((_, index) => !isHollow(rows[index])), scaled = counted.length ? counted : ys;
    const most = scaled.reduce((a, b) => Math.max(a, b)), fewest = scaled.reduce((a, b) => Math.min(a, b));
    const room = Math.max((most - fewest) * 0.12, most * 0.001);
    const y0 = fewest > 0.25 * most ? Math.max(0, fewest - 2 * room) : 0, y1 = y0 > 0 ? most + room : most * 1.04;
    const toX = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const toY = (value) => bottom - ((Math.min(y1, Math.max(y0, value)) - y0) / (y1 - y0 || 1)) * (bottom - top);
    const { unit, divisor } = scaleFor(y1);
    for (const value of ticks(y0 / divisor, y1 / divisor, 5)) {
      const y = toY(value * divisor);
      root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }), svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, tickText(value)));
    }
    root.append(svg("text", { x: 4, y: top + 4 }, unit));
    for (const value of ticks(x0, x1, Math.max(2, Math.floor(width / 120)))) if (Number.isInteger(value)) root.append(svg("text", { x: toX(value), y: bottom + 18, "text-anchor": "middle" }, tickText(value)));
    root.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "step"));
    root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
    const radius = rows.length > 3000 ? 1.6 : rows.length > 600 ? 2.1 : 3;
    for (const phase of phases) {
      const shape = SHAPES[phase] || SHAPES.other, solid = [], hollow = [];
      for (const row of rows) {
        if (table.value(block.series, row) !== phase) continue;
        (isHollow(row) ? hollow : solid).push(shape(+toX(table.value(block.x, row)).toFixed(1), +toY(table.value(block.y, row)).toFixed(1), radius));
      }
      const colour = colourOf(PHASE_FILL[phase] || "11");
      if (solid.length) root.append(svg("path", { d: solid.join(""), fill: colour, "fill-opacity": rows.length > 2000 ? 0.55 : 0.8 }));
      if (hollow.length) root.append(svg("path", { d: hollow.join(""), fill: "none", stroke: colour, "stroke-width": 1 }));
    }
    if (summary && summary.height) {
      let main = 0;
      for (let row = 1; row < summary.height; row++) {
        const better = (summary.value("phase", row) === only) - (summary.value("phase", main) === only) || (summary.value("phase", row) === "decode") - (summary.value("phase", main) === "decode") || summary.value("step_count", row) - summary.value("step_count", main);
        if (better > 0) main = row;
      }
      if (!hidden.has(summary.value("phase", main))) {
        let previous = Infinity;
        for (const [name, label] of [["p50_ns", "p50"], ["p99_ns", "p99"]]) {
          const value = summary.value(name, main);
          if (value === null || value < y0 || value > y1) continue;
          const y = toY(value), textY = Math.min(y + 4, previous - 13);
          previous = textY;
          root.append(svg("line", { x1: left, x2: width - right, y1: y, y2: y, stroke: css("--ink"), "stroke-width": 1.2, "stroke-dasharray": name === "p50_ns" ? null : "5 4" }));
          root.append(svg("text", { class: "strong", x: width - right + 6, y: textY }, `${label} ${tickText(+(value / divisor).toPrecision(4))}`));
        }
      }
    }
    const describe = (row) => `step ${table.text(block.x, row)} (${table.text(block.series, row)}${table.has("rung") && table.value("rung", row) ? `, ${table.text("rung", row)}` : ""})\n${time(table.value(block.y, row))}${isHollow(row) ? "\nnot in the statistics" : ""}`;
    const spot = svg("circle", { r: 5, fill: "none", stroke: css("--ink"), "stroke-width": 1.5, visibility: "hidden" });
    const brush = svg("rect", { y: top, height: bottom - top, fill: css("--accent"), "fill-opacity": 0.15, visibility: "hidden" });
    const area = svg("rect", { x: left, y: top, width: width - left - right, height: bottom - top, fill: "transparent", style: "cursor:crosshair" });
    root.append(brush, spot, area);
    let from = null;
    const local = (event) => ({ x: event.clientX - node.getBoundingClientRect().left, y: event.clientY - node.getBoundingClientRect().top });
    area.addEventListener("pointerdown", (event) => { from = local(event).x; area.setPointerCapture(event.pointerId); });
    area.addEventListener("pointermove", (event) => {
      const at = local(event);
      if (from !== null && Math.abs(at.x - from) > 4) {
        brush.setAttribute("visibility", "visible");
        brush.setAttribute("x", Math.min(from, at.x));
        brush.setAttribute("width", Math.abs(at.x - from));
        return;
      }
      let best = -1, distance = 900;
      rows.forEach((row, index) => {
        const d = (toX(xs[index]) - at.x) ** 2 + (toY(ys[index]) - at.y) ** 2;
        if (d < distance) { distance = d; best = index; }
      });
      spot.setAttribute("visibility", best < 0 ? "hidden" : "visible");
      if (best < 0) { hideTip(); return; }
      spot.setAttribute("cx", toX(xs[best]));
      spot.setAttribute("cy", toY(ys[best]));
      showTip(describe(rows[best]), event.clientX, event.clientY);
    });
    area.addEventListener("pointerup", (event) => {
      const at = local(event).x, back = (x) => x0 + ((x - left) / (width - left - right)) * (x1 - x0);
      if (from !== null && Math.abs(at - from) > 8) { range = [Math.floor(back(Math.min(at, from))), Math.ceil(back(Math.max(at, from)))]; from = null; refresh(); return; }
      from = null;
    });
    area.addEventListener("pointerleave", () => { hideTip(); spot.setAttribute("visibility", "hidden"); });
    return rows.map((row, index) => ({ x: toX(xs[index]), y: toY(ys[index]), text: describe(row) }));
  });
  note.append("Drag across the chart to zoom.");
  refresh();
  numbers(figure, table, { title: block.title });
}

function scaling(figure, bar, block) {
  const table = frame(block.table);
  const holder = el("div"), keys = el("div");
  // Statistics never meet in one line: each has its own pair.
  const kindsOf = table.has("statistic") ? [...new Set(table.all().map((row) => table.value("statistic", row)))] : [null];
  const fills = ["0", "2", "7", "1"], dashes = ["5", "3", "8", "12"];
  const lines = kindsOf.flatMap((statistic, index) => [["step_us", "measured", fills[index % 4], false], ["predicted_us", "predicted", dashes[index % 4], true]]
    .filter(([name]) => table.has(name) && table.all().some((row) => table.value(name, row) !== null))
    .map(([name, label, fill, dashed]) => ({ name, fill, dashed, statistic, label: kindsOf.length > 1 ? `${label} (${word(statistic)})` : label })));
  legend(keys, lines.map((line) => ({ key: line.label, label: line.label, fill: line.fill })), null);
  figure.append(keys, holder);
  plot(holder, block.title, (node, width) => {
    const rows = table.all(), height = 280, left = 70, right = 24, top = 12, bottom = height - 40;
    const values = rows.flatMap((row) => lines.map((line) => table.value(line.name, row))).filter((value) => value !== null);
    const most = Math.max(...values, 1) * 1.08;
    const kinds = [...new Set(rows.map((row) => table.value(block.x, row)))].sort((a, b) => a - b);
    const toX = (value) => left + ((kinds.indexOf(value) + 0.5) / kinds.length) * (width - left - right);
    const toY = (value) => bottom - (value / most) * (bottom - top);
    const root = svg("svg", { height, viewBox: `0 0 ${width} ${height}` });
    const { unit, divisor } = scaleFor(most * 1e3);
    for (const value of ticks(0, (most * 1e3) / divisor, 5)) {
      const y = toY((value * divisor) / 1e3);
      root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }), svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, `${tickText(value)} ${unit}`));
    }
    kinds.forEach((kind) => root.append(svg("text", { class: "strong", x: toX(kind), y: bottom + 18, "text-anchor": "middle" }, `TP ${kind}`)));
    const marks = [];
    for (const { name, label, fill, dashed, statistic } of lines) {
      const kept = rows.filter((row) => table.value(name, row) !== null && (statistic === null || table.value("statistic", row) === statistic));
      root.append(svg("path", { d: kept.map((row, index) => `${index ? "L" : "M"}${toX(table.value(block.x, row))} ${toY(table.value(name, row))}`).join(""), fill: "none", stroke: colourOf(fill), "stroke-width": 2, "stroke-dasharray": dashed ? "6 5" : null }));
      for (const row of kept) {
        const x = toX(table.value(block.x, row)), y = toY(table.value(name, row));
        const text = `TP ${table.text(block.x, row)}\n${label}: ${time(table.value(name, row) * 1e3)}`;
        const mark = svg("circle", { class: "mark", cx: x, cy: y, r: 5, fill: dashed ? css("--card") : colourOf(fill), stroke: colourOf(fill), "stroke-width": 2 });
        hover(mark, text);
        root.append(mark);
        marks.push({ x, y, text, node: mark });
      }
    }
    root.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }));
    node.append(root);
    return marks;
  });
  numbers(figure, table, { title: block.title });
}
