// Tables: sorted by a click, filtered by rank, copied as CSV, drawn a few hundred rows at a time.
const PAGE = 300;

function csvOf(table, rows) {
  const cell = (column, row) => {
    const value = valueOf(column, row);
    if (value === null || value === undefined) return "";
    if (column.type === "n" || column.type === "i" || column.type === "b") return String(value);
    // A text that a spreadsheet would run as a formula is kept a text.
    const text = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
    return text === "" || /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const lines = [table.columns.map((column) => column.name).join(",")];
  for (const row of rows) lines.push(table.columns.map((column) => cell(column, row)).join(","));
  return `${lines.join("\n")}\n`;
}
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("copying was refused");
  }
}
function copyButton(table, rows) {
  const button = el("button", {
    type: "button", class: "copy", "data-table": table.name,
    onclick: async () => {
      try {
        await copyText(csvOf(table, rows()));
        button.textContent = "Copied";
      } catch {
        button.textContent = "Copying was refused";
      }
      setTimeout(() => { button.textContent = "Copy CSV"; }, 1600);
    },
  }, "Copy CSV");
  return button;
}

// Draw one table into `parent`. Options: hide (columns), group (a column whose change draws a line), key and
// children (rows of another table under each row that shares `rank` and the key), limit (rows before "show all").
function drawTable(parent, bar, table, options = {}) {
  // A column that says nothing takes no room; the copied CSV has it all the same.
  const empty = (column) => table.height > 0 && (column.v.every((value) => value === null) || (/^(set|communicator)$/.test(column.name) && column.v.every((value) => value === column.v[0])));
  const columns = table.columns.filter((column) => !(options.hide || []).includes(column.name) && !empty(column));
  if (options.pairs && table.height && table.height <= 3) {
    bar.append(copyButton(table, () => table.all()));
    const said = (column, row) => (column.unit && valueOf(column, row) !== null ? `${textOf(column, valueOf(column, row))} ${column.unit}` : word(textOf(column, valueOf(column, row))));
    if (table.height === 1) {
      parent.append(el("dl", { class: "facts" }, ...columns.filter((column) => valueOf(column, 0) !== null).map((column) => el("div", { class: said(column, 0).length > 28 ? "wide" : null }, el("dt", { title: column.meaning || null }, column.label), el("dd", {}, said(column, 0))))));
      return;
    }
    const lines = columns.filter((column) => table.all().some((row) => valueOf(column, row) !== null)).map((column) => el("tr", {}, el("th", { scope: "row", title: column.meaning || null }, column.label), ...table.all().map((row) => el("td", { class: "text" }, said(column, row)))));
    parent.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${options.title || table.name}` }, el("table", { class: "pairs" }, el("tbody", {}, ...lines))));
    return;
  }
  const most = options.meter ? Math.max(...table.all().map((row) => table.value(options.meter, row) || 0), 1) : 1;
  let rows = table.all(), order = null, shownRows = options.limit || PAGE, only = null;
  const opened = new Set();
  const children = options.children && frame(options.children);

  const visibleRows = () => (only === null ? rows : rows.filter((row) => String(table.value("rank", row)) === only));
  const ranks = table.has("rank") ? [...new Set(table.all().map((row) => table.value("rank", row)))] : [];
  if (ranks.length > 1 && table.height > 12) {
    const select = el("select", { "aria-label": "Rank", class: "tools", onchange: () => { only = select.value === "" ? null : select.value; draw(); } },
      el("option", { value: "" }, "All ranks"), ...ranks.map((rank) => el("option", { value: String(rank) }, `Rank ${rank}`)));
    bar.append(select);
  }
  bar.append(copyButton(table, () => visibleRows()));

  const head = el("tr"), body = el("tbody");
  for (const column of columns) {
    const label = el("button", { type: "button", title: column.meaning || null, onclick: () => sort(column, cell) }, column.label);
    const cell = el("th", { scope: "col", class: column.type === "n" || column.type === "i" ? "number" : null }, label, column.unit ? el("span", { class: "unit" }, ` ${column.unit}`) : null);
    head.append(cell);
  }
  const note = el("p", { class: "note" });
  parent.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${options.title || table.name}` }, el("table", {}, el("thead", {}, head), body)), note);

  function sort(column, cell) {
    const down = order === column.name ? cell.getAttribute("aria-sort") !== "descending" : column.type === "n";
    order = column.name;
    for (const other of head.children) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    rows = table.all().sort((a, b) => {
      const x = valueOf(column, a), y = valueOf(column, b);
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return x === y ? a - b : (x < y ? -1 : 1) * sign;
    });
    draw();
  }
  function cells(source, from, row, first, place) {
    return source.map((column, index) => {
      const value = column ? valueOf(column, row) : null;
      const text = column ? textOf(column, value) : "";
      const numeric = column && (column.type === "n" || column.type === "i");
      const kind = numeric ? "number" : from === children && column && column.name === "kernel_name" ? "text name" : column && column.type === "s" && text.length > 24 ? (/kernel|pattern/.test(column.name) ? "text name" : "text") : null;
      const meter = from === table && column && options.meter === column.name && value !== null ? el("span", { class: "meter", style: `width:${Math.max(2, (100 * value) / most).toFixed(1)}%` }) : null;
      return el("td", { class: meter ? `${kind} metered` : kind, title: text.length > 160 ? text : null }, column && column.name === place && first ? first : null, meter, text.length > 160 ? shorten(text, 160) : text);
    });
  }
  function draw() {
    const wanted = visibleRows();
    const part = wanted.slice(0, shownRows);
    const lines = [];
    part.forEach((row, place) => {
      const fresh = options.group && !order && place > 0 && table.value(options.group, row) !== table.value(options.group, part[place - 1]);
      const name = options.key && table.value(options.key, row);
      const id = options.key && `${table.value("rank", row)}/${name}`;
      const below = children ? childRows(row) : [];
      const expand = below.length ? el("button", { type: "button", class: "expand", "aria-expanded": String(opened.has(id)), "aria-label": `Kernels of ${name}`, onclick: () => { opened.has(id) ? opened.delete(id) : opened.add(id); draw(); body.querySelector(`[data-id="${CSS.escape(id)}"] .expand`)?.focus(); } }, opened.has(id) ? "▾" : "▸") : children ? el("span", { class: "expand", style: "display:inline-block" }) : null;
      lines.push(el("tr", { class: [fresh ? "break" : "", name === "idle" ? "quiet" : ""].join(" ").trim() || null, "data-id": id || null }, ...cells(columns, table, row, expand, options.key)));
      if (opened.has(id)) {
        for (const child of below.slice(0, 25)) {
          // Under a head its numbers are in its unit, whatever the other table would choose for itself.
          const source = columns.map((column) => {
            const theirs = column.name === options.key ? children.byName.get("kernel_name") : column.name === "rank" ? null : children.byName.get(column.name);
            return theirs ? { ...theirs, divisor: column.divisor || theirs.divisor, decimals: column.decimals ?? theirs.decimals } : null;
          });
          lines.push(el("tr", { class: "child" }, ...cells(source, children, child, null)));
        }
        if (below.length > 25) lines.push(el("tr", { class: "child" }, el("td", { colspan: columns.length }, `${below.length - 25} smaller kernels are not listed here`)));
      }
    });
    body.replaceChildren(...lines);
    note.replaceChildren();
    if (wanted.length > part.length) {
      note.append(`${part.length.toLocaleString("en")} of ${wanted.length.toLocaleString("en")} rows. `, el("button", { type: "button", class: "tools", onclick: () => { shownRows = shownRows < PAGE ? PAGE : shownRows + 1000; draw(); } }, "Show more"));
    }
    if (table.source.of > table.height) note.append(` The file holds the first ${table.height.toLocaleString("en")} of ${table.source.of.toLocaleString("en")} rows; the command line gives all of them.`);
    if (!wanted.length) note.append("No rows: computed, and nothing was found.");
    note.hidden = !note.childNodes.length;
  }
  function childRows(row) {
    const found = [];
    for (let other = 0; other < children.height; other++) {
      if (children.value("rank", other) === table.value("rank", row) && children.value(options.key, other) === table.value(options.key, row)) found.push(other);
    }
    return found;
  }
  draw();
}
// The numbers under a chart, drawn when they are first looked at.
function numbers(parent, table, options = {}) {
  const details = el("details", {}, el("summary", {}, options.summary || "Numbers"));
  const open = () => {
    if (details.dataset.drawn) return;
    details.dataset.drawn = "yes";
    const bar = el("div", { class: "bar" }, el("span", { class: "spacer" }));
    details.append(bar);
    drawTable(details, bar, table, options);
  };
  details.addEventListener("toggle", () => details.open && open());
  parent.append(details);
  return details;
}
