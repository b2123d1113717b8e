// Tables that sort, a search, the theme; then everything is drawn.

const words = new Intl.Collator("en", { numeric: true });
function sortBy(table, place) {
  const head = table.tHead.rows[0].cells[place], down = head.getAttribute("aria-sort") === "ascending" || (!head.hasAttribute("aria-sort") && head.classList.contains("n"));
  const rows = Array.from(table.tBodies[0].rows, (row, index) => {
    const key = row.cells[place].dataset.k;
    return [row, key === undefined || key === "" ? null : head.classList.contains("n") || /^-?[\d.e+]+$/.test(key) ? Number(key) : key, index];
  });
  // What is not known stays at the end, whichever way is up.
  rows.sort(([, a, i], [, b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    const order = typeof a === "number" && typeof b === "number" ? a - b : words.compare(a, b);
    return (down ? -order : order) || i - j;
  });
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  table.tBodies[0].append(...rows.map(([row]) => row));
}
for (const table of document.querySelectorAll("table.sortable"))
  Array.from(table.tHead.rows[0].cells).forEach((head, place) => head.firstElementChild.addEventListener("click", () => sortBy(table, place)));

function find() {
  const wanted = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean), rows = byId("jobs").tBodies[0].rows;
  let shown = 0;
  for (const row of rows) {
    const said = row.textContent.toLowerCase();
    row.hidden = !wanted.every((word) => said.includes(word));
    shown += !row.hidden;
  }
  byId("found").textContent = wanted.length ? `${many(shown)} of ${many(rows.length)} jobs` : "";
}
byId("find").addEventListener("input", find);
byId("find-bar").hidden = false;

const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)"), theme = byId("theme");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; theme.setAttribute("aria-label", `${theme.textContent} colours`); };
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
dark.addEventListener("change", nameTheme);
theme.hidden = false;
nameTheme();

if (DATA.timeline) timelineButtons();
byId("charts").hidden = false;
drawAll();
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); });
// On paper: light, whatever the screen has, and drawn for a sheet's width.
let before;
addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; root.dataset.paper = "yes"; drawAll(); });
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  delete root.dataset.paper;
  drawAll();
});
document.body.dataset.ready = "yes";
