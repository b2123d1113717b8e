// The theme; then everything is drawn.

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
