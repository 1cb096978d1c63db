// One step of all ranks: lanes per stream on a canvas, zoomed by wheel, buttons and keys.
function timeline(figure, bar, block) {
  const table = frame("slices");
  let geometry = null;
  let chosen = 0, from = 0, to = 1, whole = 1, rows = [], lanes = [], starts = null;
  tabs(bar, block.views.map((view) => view.label), (index) => { chosen = index; load(); drawn.redraw(); refreshNumbers(); });
  const button = (label, name, action) => el("button", { type: "button", class: "tools", "aria-label": name, title: name, onclick: action }, label);
  bar.append(el("span", { class: "spacer" }), button("−", "Zoom out", () => zoom(1.6, 0.5)), button("+", "Zoom in", () => zoom(1 / 1.6, 0.5)), button("Reset", "Show the whole step", () => { from = 0; to = whole; drawn.redraw(); }));
  const keys = el("div"), holder = el("div"), below = el("div");
  figure.append(keys, holder, el("p", { class: "note" }, "Click the chart, then: wheel or + and - zoom, dragging or the arrow keys move, 0 shows the whole step."), below);

  function load() {
    rows = table.where("view", block.views[chosen].where);
    const found = new Map();
    for (const row of rows) {
      const key = `${table.value("rank", row)}/${table.value("stream", row)}`;
      if (!found.has(key)) found.set(key, { rank: table.value("rank", row), stream: table.value("stream", row), rows: [] });
      found.get(key).rows.push(row);
    }
    lanes = [...found.values()].sort((a, b) => a.rank - b.rank || a.stream - b.stream);
    for (const lane of lanes) lane.rows.sort((a, b) => table.value("start_ns", a) - table.value("start_ns", b) || b - a);
    whole = rows.reduce((most, row) => Math.max(most, table.value("start_ns", row) + table.value("duration_ns", row)), 1);
    starts = rows.reduce((least, row) => Math.min(least, table.value("start_ns", row)), 0);
    from = Math.min(0, starts);
    to = whole;
    const buckets = [...new Set(rows.map((row) => table.value("bucket", row)))];
    const palette = bucketPalette();
    const place = (bucket) => (bucket in palette ? Object.keys(palette).indexOf(bucket) : 99);
    buckets.sort((a, b) => place(a) - place(b));
    keys.replaceChildren();
    const entries = buckets.map((bucket, index) => ({ key: bucket, label: word(bucket), fill: fillOf("bucket", bucket, index) }));
    if (rows.some((row) => table.value("kind", row) === "wait")) entries.push({ key: "", label: "waiting for the last rank", fill: "5/" });
    legend(keys, entries, null);
  }
  function zoom(factor, share) {
    const middle = from + (to - from) * share, span = Math.min(whole - Math.min(0, starts), Math.max(200, (to - from) * factor));
    from = Math.max(Math.min(0, starts), Math.min(middle - span * share, whole - span));
    to = from + span;
    drawn.redraw();
  }
  function pan(share) {
    const span = to - from;
    from = Math.max(Math.min(0, starts), Math.min(whole - span, from + span * share));
    to = from + span;
    drawn.redraw();
  }
  const drawn = plot(holder, block.title, (node, width) => {
    if (!rows.length) load();
    const left = 96, right = 12, top = 26, gap = 8;
    const tall = lanes.length > 40 ? 9 : lanes.length > 20 ? 14 : 20;
    let y = top;
    lanes.forEach((lane, index) => { if (index && lane.rank !== lanes[index - 1].rank) y += gap; lane.y = y; y += tall + 1; });
    const height = y + 10, ratio = window.devicePixelRatio || 1;
    const canvas = el("canvas", { style: `height:auto;aspect-ratio:${width} / ${height};cursor:grab` });
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    node.append(canvas);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const toX = (value) => left + ((value - from) / (to - from)) * (width - left - right);
    const ink = css("--soft"), strong = css("--ink"), grid = css("--grid"), card = css("--card");
    const family = getComputedStyle(document.body).fontFamily;
    pen.font = `12px ${family}`;
    pen.textBaseline = "middle";
    const span = to - from, unit = scaleFor(Math.max(span, 1000));
    for (const value of ticks(from / unit.divisor, to / unit.divisor, Math.max(2, Math.floor(width / 130)))) {
      const x = toX(value * unit.divisor);
      pen.fillStyle = grid;
      pen.fillRect(x, top - 4, 1, height - top);
      pen.fillStyle = ink;
      pen.textAlign = "center";
      pen.fillText(`${tickText(+value.toFixed(3))} ${unit.unit}`, Math.max(left + 20, Math.min(width - 30, x)), 10);
    }
    pen.textAlign = "right";
    lanes.forEach((lane, index) => {
      const first = index === 0 || lanes[index - 1].rank !== lane.rank;
      pen.fillStyle = first ? strong : ink;
      if (tall >= 12 || first) pen.fillText(first ? `rank ${lane.rank} · ${lane.stream}` : `${lane.stream}`, left - 10, lane.y + tall / 2);
    });
    const colours = new Map(), inks = new Map(), hatches = new Map();
    const colour = (bucket) => {
      if (!colours.has(bucket)) { const value = colourOf(fillOf("bucket", bucket, 11)); colours.set(bucket, value); inks.set(bucket, onColour(value)); }
      return colours.get(bucket);
    };
    const hatch = (value) => {
      if (!hatches.has(value)) {
        const tile = el("canvas");
        tile.width = tile.height = 6;
        const brush = tile.getContext("2d");
        brush.globalAlpha = 0.3;
        brush.fillStyle = value;
        brush.fillRect(0, 0, 6, 6);
        brush.globalAlpha = 1;
        brush.strokeStyle = value;
        brush.lineWidth = 1.4;
        brush.beginPath();
        for (const shift of [-6, 0, 6]) { brush.moveTo(shift, 6); brush.lineTo(shift + 6, 0); }
        brush.stroke();
        hatches.set(value, pen.createPattern(tile, "repeat"));
      }
      return hatches.get(value);
    };
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left - right, height);
    pen.clip();
    pen.textAlign = "left";
    pen.font = `11px ${family}`;
    for (const lane of lanes) {
      pen.fillStyle = grid;
      pen.fillRect(left, lane.y + tall / 2, width - left - right, 1);
      for (const row of lane.rows) {
        const start = table.value("start_ns", row), length = table.value("duration_ns", row);
        if (start + length < from || start > to) continue;
        const x = toX(start), w = Math.max(0.6, toX(start + length) - x), bucket = table.value("bucket", row), base = colour(bucket);
        pen.fillStyle = table.value("kind", row) === "wait" ? hatch(base) : base;
        pen.fillRect(x, lane.y, w > 2 ? w - 0.5 : w, tall);
        if (w > 40 && tall >= 14) {
          const left2 = Math.max(x, left) + 4, room = Math.min(x + w, width - right) - left2 - 4;
          if (room > 28) {
            const label = table.value("kind", row) === "wait" ? "waiting" : kernelWord(table.text("name", row));
            const cut = shorten(label, Math.max(3, Math.floor(room / 6.2)));
            if (table.value("kind", row) === "wait") {
              const wide = pen.measureText(cut).width;
              pen.fillStyle = card;
              pen.fillRect(left2 - 2, lane.y + 3, wide + 4, tall - 6);
              pen.fillStyle = strong;
            } else pen.fillStyle = inks.get(bucket);
            pen.fillText(cut, left2, lane.y + tall / 2 + 0.5);
          }
        }
      }
    }
    pen.restore();
    geometry = { left, right, width, tall };
    return [];
  });

  // The canvas is replaced on every redraw; the pointer belongs to the frame around it.
  const node = drawn.node;
  const at = (event) => { const place = node.getBoundingClientRect(); return { x: event.clientX - place.left, y: event.clientY - place.top }; };
  const across = () => geometry.width - geometry.left - geometry.right;
  function find(place) {
    const lane = lanes.find((item) => place.y >= item.y && place.y < item.y + geometry.tall);
    if (!lane) return -1;
    const slack = ((to - from) / across()) * 2, moment = from + ((place.x - geometry.left) / across()) * (to - from);
    let best = -1, least = Infinity;
    for (const row of lane.rows) {
      const start = table.value("start_ns", row), end = start + table.value("duration_ns", row);
      const distance = moment < start ? start - moment : moment > end ? moment - end : 0;
      if (distance <= slack && distance <= least) { least = distance; best = row; }
    }
    return best;
  }
  let grabbed = null;
  node.addEventListener("pointerdown", (event) => { grabbed = at(event).x; node.setPointerCapture(event.pointerId); node.focus({ preventScroll: true }); });
  node.addEventListener("pointermove", (event) => {
    const place = at(event);
    if (grabbed !== null) {
      hideTip();
      pan((grabbed - place.x) / across());
      grabbed = place.x;
      return;
    }
    const row = find(place);
    if (row < 0) hideTip();
    else showTip(describe(row), event.clientX, event.clientY);
  });
  for (const name of ["pointerup", "pointercancel"]) node.addEventListener(name, () => { grabbed = null; });
  // A page must scroll past the chart: the wheel zooms once the chart has the focus, or with Ctrl.
  node.addEventListener("wheel", (event) => {
    if (!event.deltaY || (document.activeElement !== node && !event.ctrlKey)) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, Math.min(1, (at(event).x - geometry.left) / across())));
  }, { passive: false });
  function describe(row) {
    const kind = table.value("kind", row);
    const head = kind === "wait" ? "waiting for the last rank" : kind === "transfer" ? "transfer" : word(table.text("bucket", row));
    return `rank ${table.text("rank", row)}, stream ${table.text("stream", row)}: ${head}\n${time(table.value("duration_ns", row))}, from ${time(table.value("start_ns", row))}\n${shorten(table.text("name", row), 220)}`;
  }
  node.addEventListener("keydown", (event) => {
    const action = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(1 / 1.4, 0.5), "=": () => zoom(1 / 1.4, 0.5), "-": () => zoom(1.4, 0.5), 0: () => { from = Math.min(0, starts); to = whole; drawn.redraw(); } }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  function refreshNumbers() {
    below.replaceChildren();
    numbers(below, table, { title: block.title, summary: "Numbers (both steps)" });
  }
  refreshNumbers();
}
// The part of a demangled name that a person calls the kernel.
function kernelWord(name) {
  const plain = name.replace(/^void\s+/, "").replace(/<.*$/, "").replace(/\(.*$/, "");
  return plain.split("::").pop() || name;
}
