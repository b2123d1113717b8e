"use strict";
// Small helpers. Text only ever goes in as text (textContent), never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) if (attributes[key] !== null && attributes[key] !== undefined) node.setAttribute(key, attributes[key]);
  for (const child of children) node.append(child);
  return node;
}

function tag(name, properties, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

function canvas(width, height, label, described) {
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, "aria-describedby": described });
  return node;
}

// Colours are names of the style sheet's, so that dark, light and print need no second drawing.
const paint = (name) => `var(--${name})`;
const text = (x, y, words, more) => svg("text", { x, y, ...more }, words);
const line = (x1, y1, x2, y2, kind, more) => svg("line", { x1, y1, x2, y2, class: kind, ...more });

function gib(mib) {
  const value = mib / 1024;
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}
function percent(part, sign) {
  const whole = Math.round(part * 100);
  return `${sign && whole > 0 ? "+" : whole < 0 ? "−" : ""}${Math.abs(whole)}%`;
}
function hours(seconds) {
  const value = seconds / 3600;
  return value >= 100 ? Math.round(value).toLocaleString("en") : value >= 0.95 ? value.toFixed(1) : value.toFixed(2);
}
const many = (number) => number.toLocaleString("en");

// Times are those of the cluster, wherever the page is read.
const clock = (at) => new Date((at + DATA.offset_s) * 1000);
const two = (number) => String(number).padStart(2, "0");
const day = (at) => `${clock(at).getUTCFullYear()}-${two(clock(at).getUTCMonth() + 1)}-${two(clock(at).getUTCDate())}`;
const time = (at, seconds) => `${two(clock(at).getUTCHours())}:${two(clock(at).getUTCMinutes())}${seconds ? ":" + two(clock(at).getUTCSeconds()) : ""}`;

function legend(entries) {
  const list = tag("ul", { className: "legend" });
  for (const [mark, words] of entries) list.append(tag("li", {}, svg("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" }, mark), words));
  return list;
}
const swatch = (colour) => svg("rect", { x: 1, y: 1, width: 12, height: 12, rx: 2, fill: colour });

// One tooltip for all charts: `words(event)` says what is under the pointer, or nothing.
const tip = byId("tip");
function explain(node, words) {
  const show = (event) => {
    const said = words(event);
    tip.hidden = !said;
    if (!said) return;
    tip.textContent = said;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 6);
    const y = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  };
  node.addEventListener("pointermove", show);
  node.addEventListener("pointerdown", show);
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

// Where the pointer is, in the drawing's own units.
function inside(node, event) {
  const box = node.getBoundingClientRect();
  const view = node.viewBox.baseVal;
  return [(event.clientX - box.left) / box.width * view.width, (event.clientY - box.top) / box.height * view.height];
}

// Every chart is drawn for the width it has, and again when that changes: letters keep their size on a phone.
const drawings = [];
function chart(id, shown, draw) {
  if (!shown) { byId("sec-" + id).remove(); return; }
  const holder = byId(id);
  drawings.push(() => {
    const width = Math.max(260, Math.round(holder.clientWidth || 640));
    if (holder.dataset.width === String(width)) return;
    holder.dataset.width = width;
    holder.replaceChildren(...draw(width));
  });
}
// A sheet has less room than a screen that scrolls.
const tallest = () => (document.documentElement.dataset.paper ? 250 : 440);
function drawAll() { for (const draw of drawings) draw(); }
function redraw(id) { delete byId(id).dataset.width; drawAll(); }

function niceStep(range, count) {
  const raw = range / count, power = 10 ** Math.floor(Math.log10(raw));
  for (const factor of [1, 2, 5, 10]) if (raw <= factor * power) return factor * power;
  return 10 * power;
}
