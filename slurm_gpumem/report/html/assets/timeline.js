// The timeline: for each GPU the memory of its jobs, stacked, over time.

// Round moments of the cluster's clock that fit: [[when, "14:00"], …].
function ticks(first, last, room) {
  const steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000];
  const wanted = (last - first) / Math.max(2, room / 72), step = steps.find((one) => one >= wanted) || steps[steps.length - 1], found = [];
  for (let at = Math.ceil((first + DATA.offset_s) / step) * step - DATA.offset_s; at <= last; at += step) {
    const midnight = (at + DATA.offset_s) % 86400 === 0;
    found.push([at, step >= 86400 || midnight ? day(at).slice(5) : time(at, step < 60)]);
  }
  return found;
}

const view = DATA.timeline && { from: DATA.timeline.first, to: DATA.timeline.last, all: false };
const COLOUR = (place) => paint(place < 0 ? "cx" : "c" + place);

// What a job held on average between two moments: its curve where there is one, else its peak.
function held(stay, from, to) {
  const begin = Math.max(from, stay[1]), end = Math.min(to, stay[2]);
  if (end <= begin) return 0;
  const curve = stay[9];
  if (!curve) return stay[3] * (end - begin) / (to - from);
  const [start, step, sizes] = curve;
  let sum = 0;
  const lastPlace = sizes.length - 1;
  for (let place = Math.min(lastPlace, Math.max(0, Math.floor((begin - start) / step))); place <= lastPlace; place += 1) {
    const a = place === 0 ? -Infinity : start + place * step, b = place === lastPlace ? Infinity : start + (place + 1) * step;
    if (a >= end) break;
    sum += sizes[place] * Math.max(0, Math.min(end, b) - Math.max(begin, a));
  }
  return sum / (to - from);
}

function gpuRow(node, gpu, stays, box, from, to) {
  const [name, memory, kind] = gpu, { left, top, width, height } = box;
  const columns = Math.max(20, Math.round(width / 2)), each = (to - from) / columns;
  const stacks = stays.map((stay) => ({ stay, base: new Float64Array(columns), size: new Float64Array(columns), some: false }));
  const total = new Float64Array(columns), granted = new Float64Array(columns);
  for (const stack of stacks) {
    const begin = Math.max(0, Math.floor((stack.stay[1] - from) / each)), end = Math.min(columns - 1, Math.floor((stack.stay[2] - from) / each));
    for (let c = begin; c <= end; c += 1) {
      const size = held(stack.stay, from + c * each, from + (c + 1) * each);
      stack.base[c] = total[c];
      stack.size[c] = size;
      total[c] += size;
      if (size) stack.some = true;
      const part = Math.max(0, Math.min(stack.stay[2], from + (c + 1) * each) - Math.max(stack.stay[1], from + c * each)) / each;
      granted[c] += (stack.stay[4] || 0) * part;
    }
  }
  const most = Math.max(memory || 0, ...total, ...(memory ? [] : granted), 1);
  const x = (c) => left + c / columns * width, y = (mib) => top + height * (1 - mib / most);
  node.append(svg("rect", { x: left, y: top, width, height, class: "row" }));
  for (const stack of stacks) if (stack.some) node.append(block(stack, columns, x, y));
  const steps = Array.from(granted, (mib, c) => mib ? `${c && granted[c - 1] ? "L" : "M"}${x(c).toFixed(1)} ${y(Math.min(mib, most)).toFixed(1)}H${x(c + 1).toFixed(1)}` : "").join("");
  if (steps) node.append(svg("path", { d: steps, fill: "none", stroke: paint("ink"), "stroke-opacity": 0.55, "stroke-dasharray": "3 2", "pointer-events": "none" }));
  for (const stack of stacks) if (stack.some) label(node, stack, columns, x, y);
  return (px, py) => {
    const c = Math.floor((px - left) / width * columns), mib = (1 - (py - top) / height) * most;
    if (c < 0 || c >= columns) return "";
    const found = stacks.find((stack) => stack.size[c] > 0 && mib >= stack.base[c] && mib <= stack.base[c] + stack.size[c]);
    const moment = `${name}${kind ? " " + kind : ""}\n${day(from + c * each)} ${time(from + c * each)}: ${gib(total[c])}${memory ? " of " + gib(memory) : ""} GiB`;
    if (!found) return moment;
    const stay = found.stay;
    return `${stay[5]} ${stay[8]} (${stay[7]})\n${gib(found.size[c])} GiB here, peak ${gib(stay[3])}${stay[4] ? ", granted " + gib(stay[4]) : ""} GiB\n${day(stay[1])} ${time(stay[1])} – ${time(stay[2])}\n${moment}`;
  };
}

// One job's part of the stack as a stepped shape.
function block(stack, columns, x, y) {
  let upper = "", lower = "", tallest = 0;
  const shapes = [];
  const close = () => { if (upper) shapes.push("M" + upper.slice(1) + lower + "z"); upper = lower = ""; };
  for (let c = 0; c < columns; c += 1) {
    if (!stack.size[c]) { close(); continue; }
    const high = y(stack.base[c] + stack.size[c]).toFixed(1), low = y(stack.base[c]).toFixed(1), a = x(c).toFixed(1), b = x(c + 1).toFixed(1);
    tallest = Math.max(tallest, low - high);
    upper += `L${a} ${high}L${b} ${high}`;
    lower = `L${b} ${low}L${a} ${low}` + lower;
  }
  close();
  return svg("path", { d: shapes.join(""), fill: COLOUR(stack.stay[6]), stroke: paint("card"), "stroke-width": tallest > 6 ? 0.8 : tallest > 2.5 ? 0.4 : 0 });
}

// The job's number and model, where there is room for them.
function label(node, stack, columns, x, y) {
  let best = null;
  for (let c = 0; c < columns;) {
    if (!stack.size[c]) { c += 1; continue; }
    const from = c;
    let low = -Infinity, high = Infinity;
    // The strip that lies within the shape from `from` on, for as long as it is high enough for letters.
    while (c < columns && stack.size[c]) {
      const nextLow = Math.max(low, stack.base[c]), nextHigh = Math.min(high, stack.base[c] + stack.size[c]);
      if (y(nextLow) - y(nextHigh) < 13) break;
      low = nextLow; high = nextHigh; c += 1;
    }
    const room = x(c) - x(from);
    if (c > from && (!best || room > best.room)) best = { room, at: x(from), y: (y(low) + y(high)) / 2 };
    if (c === from) c += 1;
  }
  if (!best) return;
  const letters = Math.floor((best.room - 8) / 6.6), full = `${stack.stay[5]} ${stack.stay[8]}`.trim(), short = String(stack.stay[5]);
  const words = full.length <= letters ? full : short.length + 4 <= letters ? full.slice(0, letters - 1) + "…" : short.length <= letters ? short : "";
  if (words) node.append(text(best.at + 5, best.y + 4, words, { class: "on" }));
}

chart("timeline", DATA.timeline !== null, (width) => {
  const { gpus, stays, shown, users } = DATA.timeline;
  const listed = view.all ? gpus : gpus.slice(0, shown), narrow = width < 520;
  const left = narrow ? 0 : Math.min(130, 14 + 6.8 * Math.max(...listed.map((gpu) => gpu[0].length))), head = narrow ? 16 : 0, tall = (narrow ? 0.9 : 1) * (listed.length <= 2 ? 130 : listed.length <= 5 ? 100 : 72), gap = 8, top = 20;
  const each = head + tall + gap, height = top + listed.length * each, from = view.from, to = Math.max(view.to, view.from + 1);
  const node = canvas(width, height, `Memory of ${DATA.timeline.jobs} jobs on ${listed.length} GPUs over time; the same jobs are in the table below`);
  const byGpu = listed.map(() => []);
  for (const stay of stays) if (stay[0] < listed.length && stay[2] > from && stay[1] < to) byGpu[stay[0]].push(stay);
  const found = listed.map((gpu, place) => {
    const y = top + place * each + head;
    node.append(narrow ? text(0, y - 4, `${gpu[0]}${gpu[1] ? `, ${gib(gpu[1])} GiB` : ""}`, { class: "ink" }) : text(left - 8, y + 16, gpu[0], { class: "ink", "text-anchor": "end" }));
    if (!narrow && gpu[1]) node.append(text(left - 8, y + 32, `${gib(gpu[1])} GiB`, { "text-anchor": "end" }));
    byGpu[place].sort((a, b) => a[1] - b[1] || a[5] - b[5]);
    return gpuRow(node, gpu, byGpu[place], { left, top: y, width: width - left, height: tall }, from, to);
  });
  for (const [at, name] of ticks(from, to, width - left)) {
    const x = left + (at - from) / (to - from) * (width - left);
    node.append(line(x, top - 5, x, height - gap, "", { stroke: paint("ink"), "stroke-opacity": 0.13, "pointer-events": "none" }));
    if (x > left + 16 && x < width - 16) node.append(text(x, 12, name, { "text-anchor": "middle" }));
  }
  explain(node, (event) => {
    const [px, py] = inside(node, event), place = Math.floor((py - top) / each);
    return found[place] ? found[place](px, py) : "";
  });
  const entries = users.map((user, place) => [swatch(COLOUR(place)), user]);
  if (stays.some((stay) => stay[6] < 0)) entries.push([swatch(COLOUR(-1)), "other users"]);
  entries.push([svg("path", { d: "M0 7H14", stroke: paint("ink"), "stroke-dasharray": "3 2" }), "granted"]);
  tellTimeline(listed.length);
  return [legend(entries), node];
});

function tellTimeline(listed) {
  const all = DATA.timeline, hidden = all.all_gpus - listed;
  byId("timeline-note").textContent = [
    all.complete ? "" : `The latest ${many(all.jobs)} jobs, from ${day(all.first)} ${time(all.first)} on.`,
    hidden > 0 ? `The ${many(listed)} most shared of ${many(all.all_gpus)} GPUs.` : "",
    `Height is measured memory, the row's full height all of the GPU's. Times are ${DATA.zone}.`,
  ].filter(Boolean).join(" ");
}

function timelineButtons() {
  const all = DATA.timeline, bar = byId("timeline-bar"), whole = Math.max(1, all.last - all.first);
  const said = tag("span", { className: "dim" });
  said.setAttribute("role", "status");
  const zoom = (factor) => move((view.from + view.to) / 2, (view.to - view.from) * factor);
  const move = (middle, span) => {
    const wide = Math.min(whole, Math.max(Math.min(60, whole), span));
    view.from = Math.min(Math.max(all.first, middle - wide / 2), all.last - wide);
    view.to = view.from + wide;
    tell();
    redraw("timeline");
  };
  const button = (sign, name, action) => {
    const node = tag("button", { type: "button", textContent: sign, title: name, onclick: action });
    node.setAttribute("aria-label", name);
    bar.append(node);
    return node;
  };
  const span = () => view.to - view.from;
  const earlier = button("◀", "Earlier", () => move((view.from + view.to) / 2 - span() / 2, span()));
  const later = button("▶", "Later", () => move((view.from + view.to) / 2 + span() / 2, span()));
  const closer = button("+", "Zoom in", () => zoom(0.5));
  const wider = button("−", "Zoom out", () => zoom(2));
  button("All", "The whole time", () => move((all.first + all.last) / 2, whole));
  if (all.gpus.length > all.shown) {
    const more = button(`Show ${all.gpus.length} GPUs`, `Show ${all.gpus.length} GPUs`, () => {
      view.all = !view.all;
      more.textContent = view.all ? `Show ${all.shown} GPUs` : `Show ${all.gpus.length} GPUs`;
      more.setAttribute("aria-label", more.textContent);
      redraw("timeline");
    });
  }
  bar.append(said);
  const tell = () => {
    said.textContent = `${day(view.from)} ${time(view.from)} – ${day(view.to) === day(view.from) ? "" : day(view.to) + " "}${time(view.to)}`;
    earlier.disabled = view.from <= all.first + 1;
    later.disabled = view.to >= all.last - 1;
    closer.disabled = span() <= 60;
    wider.disabled = span() >= whole - 1;
  };
  tell();
}
