// The page: theme, navigation, sections.
const CHARTS = { stack, delta, box, points, scaling, heat, timeline };

function setTheme(choice) {
  const dark = choice === "dark" || (choice === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
const themeSelect = document.getElementById("theme");
setTheme("auto");
themeSelect.addEventListener("change", () => { setTheme(themeSelect.value); redrawAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(themeSelect.value); redrawAll(); });
function redrawAll() { redraws.forEach((redraw) => redraw()); }
document.getElementById("print").addEventListener("click", () => window.print());

const holder = document.getElementById("sections");
for (const section of data.sections) {
  const node = el("section", { id: section.id }, el("h2", {}, section.title), el("p", { class: "about" }, section.about));
  holder.append(node);
  if (!section.blocks.length) node.append(el("p", { class: "absent" }, "This could not be computed from the capture; the notices at the top say why."));
  for (const block of section.blocks) {
    const bar = el("div", { class: "bar" }, el("h3", {}, block.title));
    if (block.kind === "table") {
      const table = frame(block.table);
      if (block.open) {
        const card = el("div", { class: "block", "data-block": block.table }, bar);
        bar.append(el("span", { class: "spacer" }));
        node.append(card);
        drawTable(card, bar, table, block);
      } else {
        const card = el("div", { class: "block", "data-block": block.table });
        node.append(card);
        numbers(card, table, { ...block, summary: block.title });
      }
      continue;
    }
    const figure = el("figure", { "data-block": block.table || (block.views[0] && block.views[0].table), "data-kind": block.kind }, bar);
    node.append(figure);
    const source = block.table && frame(block.table);
    if (source && !source.height) figure.append(el("p", { class: "absent" }, "Computed, and nothing was found."));
    else if (source && block.columns && block.columns.every((name) => source.all().every((row) => source.value(name, row) === null))) figure.append(el("p", { class: "absent" }, "Not measured in this capture; the notices at the top say why."));
    else CHARTS[block.kind](figure, bar, block);
  }
}

// A printed page cannot be clicked: the notes are opened; charts and open tables are what fits on paper.
addEventListener("beforeprint", () => document.querySelectorAll("details.notes").forEach((details) => { details.open = true; }));

const links = [...document.querySelectorAll("nav ol a")];
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.toggleAttribute("aria-current", link.getAttribute("href") === `#${entry.target.id}`));
  }
}, { rootMargin: "0px 0px -70% 0px" });
links.map((link) => document.querySelector(link.getAttribute("href"))).filter(Boolean).forEach((target) => seen.observe(target));
document.documentElement.dataset.ready = "yes";
