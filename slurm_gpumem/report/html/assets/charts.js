// Before and after, days, scatter, histogram, occupancy.

chart("changes", DATA.changes.length > 0, (width) => {
  const parts = [];
  for (const change of DATA.changes) {
    const rows = [["GPU-hours", change.before_s, change.after_s, Math.max(change.before_s, change.after_s), hours]];
    const share = (value) => percent(value);
    if (change.sm) rows.push(["SM activity", change.sm[0], change.sm[1], 1, share]);
    if (change.memory) rows.push(["Memory in use", change.memory[0], change.memory[1], 1, share]);
    const narrow = width < 520, left = narrow ? 0 : 110, head = narrow ? 18 : 0, each = 50 + head;
    const node = canvas(width, rows.length * each + 4, rows.map(([name, a, b, , show]) => `${name}: ${show(a)} before, ${show(b)} after`).join("; "));
    rows.forEach(([name, before, after, full, show], index) => {
      const y = index * each + 2, room = width - left - 64;
      node.append(narrow ? text(0, y + 13, name, { class: "ink" }) : text(left - 12, y + 28, name, { class: "ink", "text-anchor": "end" }));
      [[before, "soft"], [after, "good"]].forEach(([value, colour], place) => {
        const top = y + head + place * 21, length = Math.max(1, value / full * room);
        node.append(
          svg("rect", { x: left, y: top, width: room, height: 19, fill: paint("paper"), rx: 2 }),
          svg("rect", { x: left, y: top, width: length, height: 19, fill: paint(colour), rx: 2 }),
          text(left + length + 6, top + 14, show(value), { class: "ink" }));
      });
    });
    parts.push(
      tag("h3", { className: "note", textContent: `${change.title} (${many(change.jobs)} ${change.jobs === 1 ? "job" : "jobs"})` }),
      legend([[swatch(paint("soft")), "a GPU each"], [swatch(paint("good")), "sharing"]]),
      node, tag("p", { className: "note", textContent: change.note }));
  }
  return parts;
});

chart("days", DATA.days.length > 2, (width) => {
  const days = DATA.days, bottom = 22, top = 8, height = 190;
  const most = Math.max(...days.map(([, used, alone]) => Math.max(used, alone)), 1) / 3600;
  const step = niceStep(most, 4), full = Math.ceil(most / step) * step, left = 16 + 7 * many(full).length;
  const y = (h) => top + (height - top - bottom) * (1 - h / full);
  const each = (width - left - 4) / days.length, thick = Math.max(1, Math.min(26, each * 0.72));
  const node = canvas(width, height, `GPU-hours by day, ${days.length} days`);
  for (let h = 0; h <= full + 1e-9; h += step) node.append(line(left, y(h), width, y(h), "grid-line"), text(left - 6, y(h) + 4, many(+h.toFixed(2)), { "text-anchor": "end" }));
  const every = Math.ceil(days.length / Math.max(1, Math.floor((width - left) / 56)));
  days.forEach(([name, used, alone], index) => {
    const x = left + each * index + (each - thick) / 2;
    node.append(
      svg("rect", { x, y: y(alone / 3600), width: thick, height: Math.max(0, y(0) - y(alone / 3600)), fill: paint("soft") }),
      svg("rect", { x: x + thick * 0.18, y: y(used / 3600), width: thick * 0.64, height: Math.max(0, y(0) - y(used / 3600)), fill: paint("good") }));
    if (index % every === 0) node.append(text(x + thick / 2, height - 6, name.slice(5), { "text-anchor": "middle" }));
  });
  explain(node, (event) => {
    const found = days[Math.floor((inside(node, event)[0] - left) / each)];
    return found && `${found[0]}\n${many(found[3])} jobs\n${hours(found[1])} GPU-hours taken\n${hours(found[2])} with a GPU each`;
  });
  return [legend([[swatch(paint("soft")), "with a GPU for each job"], [swatch(paint("good")), "taken"]]), node];
});

function mark(kind, x, y, size) {
  if (kind === 0) return svg("circle", { cx: x, cy: y, r: size * 0.8, fill: paint("good"), "fill-opacity": 0.55 });
  if (kind === 1) return svg("path", { d: `M${x} ${y - size * 1.1}l${size} ${size * 1.9}h${-2 * size}z`, fill: paint("warn") });
  return svg("path", { d: `M${x - size} ${y - size}l${2 * size} ${2 * size}M${x - size} ${y + size}l${2 * size} ${-2 * size}`, stroke: paint("bad"), "stroke-width": 2, fill: "none" });
}
const KINDS = ["within its request", "above its request", "ran out of memory"];

chart("scatter", DATA.scatter.jobs > 0, (width) => {
  const { points, cells, range, per_octave: per, kinds, jobs } = DATA.scatter;
  const left = 44, bottom = 36, right = 8, top = 8, height = Math.min(width, tallest());
  const low = Math.floor(Math.log2(range[0] / 1024) * 2 - 0.3) / 2, high = Math.max(low + 1, Math.ceil(Math.log2(range[1] / 1024) * 2 + 0.3) / 2);
  const x = (mib) => left + (Math.log2(mib / 1024) - low) / (high - low) * (width - left - right);
  const y = (mib) => height - bottom - (Math.log2(mib / 1024) - low) / (high - low) * (height - top - bottom);
  const node = canvas(width, height, "Estimated against measured peak, GiB, both on logarithmic axes", "about-scatter");
  for (let power = Math.ceil(low); power <= high; power += 1) {
    const mib = 1024 * 2 ** power, name = power < 0 ? String(2 ** power) : many(2 ** power);
    node.append(line(x(mib), top, x(mib), height - bottom, "grid-line"), line(left, y(mib), width - right, y(mib), "grid-line"));
    node.append(text(x(mib), height - bottom + 15, name, { "text-anchor": "middle" }), text(left - 6, y(mib) + 4, name, { "text-anchor": "end" }));
  }
  const edge = (f) => [1024 * 2 ** low, 1024 * 2 ** high].map(f);
  const [x0, x1] = edge(x), [y0, y1] = edge(y);
  node.append(
    svg("path", { d: `M${x0} ${y0}V${y1}H${x1}z`, fill: paint("warn"), "fill-opacity": 0.07 }),
    line(x0, y0, x1, y1, "", { stroke: paint("dim"), "stroke-dasharray": "5 4" }),
    text(left + 8, top + 16, "estimate too low"), text(width - right - 8, height - bottom - 8, "estimate too high", { "text-anchor": "end" }),
    text((left + width - right) / 2, height - 4, "estimated peak, GiB", { "text-anchor": "middle" }),
    svg("text", { transform: `translate(11 ${(height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "measured peak, GiB"));
  const most = Math.log(1 + Math.max(1, ...cells.map((cell) => cell[2])));
  for (const [cx, cy, n] of cells) {
    const a = 2 ** (cx / per), b = 2 ** ((cx + 1) / per), c = 2 ** (cy / per), d = 2 ** ((cy + 1) / per);
    node.append(svg("rect", { x: x(a), y: y(d), width: x(b) - x(a) - 0.6, height: y(c) - y(d) - 0.6, fill: paint("good"), "fill-opacity": (0.12 + 0.88 * Math.log(1 + n) / most).toFixed(2) }));
  }
  const ordered = [...points].sort((a, b) => a[3] - b[3]);
  for (const point of ordered) node.append(mark(point[3], x(point[0]), y(point[1]), 4));
  explain(node, (event) => {
    const [px, py] = inside(node, event);
    let best = null, near = 14 ** 2;
    for (const point of points) {
      const away = (x(point[0]) - px) ** 2 + (y(point[1]) - py) ** 2;
      if (away < near) { near = away; best = point; }
    }
    if (best) return `${best[4]} ${best[6]} (${best[5]})\nestimated ${gib(best[0])}, measured ${gib(best[1])} GiB (${percent(best[0] / best[1] - 1, true)})` + (best[2] ? `\nasked for ${gib(best[2])} GiB: ${KINDS[best[3]]}` : "");
    const cell = cells.find(([cx, cy]) => px >= x(2 ** (cx / per)) && px < x(2 ** ((cx + 1) / per)) && py <= y(2 ** (cy / per)) && py > y(2 ** ((cy + 1) / per)));
    return cell && `${many(cell[2])} jobs, about ${gib(2 ** ((cell[0] + 0.5) / per))} GiB estimated, ${gib(2 ** ((cell[1] + 0.5) / per))} GiB measured`;
  });
  byId("scatter-note").textContent = cells.length
    ? `${many(jobs)} jobs are too many for a point each: squares are counted jobs, darker for more; drawn as points are the ${many(points.length)} that were furthest above their request.`
    : "Both axes are logarithmic. On the dashed line the estimate was right.";
  const entries = KINDS.map((words, kind) => [mark(kind, 7, 7, 4.5), `${words}: ${many(kinds[kind])}`]);
  return [legend(entries.filter((entry, kind) => kinds[kind])), node];
});

chart("errors", DATA.errors.jobs > 0, (width) => {
  const { estimates, requests, low, bin, median, jobs } = DATA.errors;
  const most = Math.max(...estimates, ...requests, 1), step = Math.max(1, niceStep(most, 5)), full = Math.ceil(most / step) * step;
  const left = 16 + 7 * many(full).length, bottom = 36, right = 22, top = 14, height = Math.min(width, tallest()), count = estimates.length;
  const each = (width - left - right) / count, x = (place) => left + each * place;
  const y = (n) => top + (height - top - bottom) * (1 - n / full);
  const at = (error) => x(Math.min(Math.max((error - low) / bin, -1), count - 2) + 1);
  const node = canvas(width, height, "How often which error of the estimate occurred", "about-errors");
  for (let n = 0; n <= full; n += step) node.append(line(left, y(n), width - right, y(n), "grid-line"), text(left - 6, y(n) + 4, many(n), { "text-anchor": "end" }));
  node.append(text(left + 6, top + 4, "jobs"));
  estimates.forEach((n, place) => {
    const under = place === 0 || low + bin * (place - 1) < -1e-9;
    if (n) node.append(svg("rect", { x: x(place) + 0.5, y: y(n), width: Math.max(1, each - 1), height: y(0) - y(n), fill: paint(under ? "warn" : "good"), "fill-opacity": 0.85 }));
  });
  if (requests.some((n) => n)) {
    const steps = requests.map((n, place) => `${place ? "L" : "M"}${x(place)} ${y(n)}H${x(place + 1)}`).join("");
    node.append(svg("path", { d: steps, fill: "none", stroke: paint("ink"), "stroke-width": 1.2, "stroke-opacity": 0.7 }));
  }
  for (const error of width < 420 ? [-0.5, 0, 0.5, 1] : [-0.5, -0.25, 0, 0.25, 0.5, 0.75, 1]) node.append(text(at(error), height - bottom + 15, percent(error, true), { "text-anchor": "middle" }));
  node.append(line(at(0), top, at(0), y(0), "axis"), text((left + width - right) / 2, height - 4, "estimate against measured peak", { "text-anchor": "middle" }));
  if (median !== null) {
    const mx = at(median), flip = mx > width / 2;
    node.append(line(mx, top - 6, mx, y(0), "", { stroke: paint("ink"), "stroke-dasharray": "2 3" }), text(mx + (flip ? -5 : 5), top + 4, `median ${percent(median, true)}`, { class: "ink", "text-anchor": flip ? "end" : "start" }));
  }
  explain(node, (event) => {
    const place = Math.floor((inside(node, event)[0] - left) / each);
    if (!(place >= 0 && place < count)) return "";
    const from = low + bin * (place - 1);
    const where = place === 0 ? `below ${percent(low, true)}` : place === count - 1 ? `${percent(from, true)} and more` : `${percent(from, true)} to ${percent(from + bin, true)}`;
    return `${where}\n${many(estimates[place])} estimates (${percent(estimates[place] / jobs)})\n${many(requests[place])} requests`;
  });
  byId("errors-note").textContent = "The bars at both ends hold all that lies beyond. Left of 0 there was too little: an estimate may be, a request should not.";
  const outline = svg("path", { d: "M1 10H5V4H9V8H13", fill: "none", stroke: paint("ink"), "stroke-width": 1.5 });
  return [legend([[swatch(paint("warn")), "estimate too low"], [swatch(paint("good")), "estimate too high"], [outline, "what was asked for"]]), node];
});

chart("occupancy", DATA.occupancy !== null, (width) => {
  const { rows, first, last, gpus } = DATA.occupancy;
  // Many GPUs: thin rows, and only where the next node begins is there room for its name.
  const thin = rows.length > 24, names = rows.map((row) => (thin ? row[0].replace(/\/[^/]*$/, "") : row[0]));
  const left = Math.min(150, 14 + 6.6 * Math.max(...names.map((name) => name.length))), tall = thin ? 6 : 14, top = 20;
  const node = canvas(width, top + rows.length * tall + 6, `Memory in use on ${rows.length} GPUs over time`);
  for (const [at, name] of ticks(first, last, width - left)) {
    const x = left + (at - first) / (last - first) * (width - left);
    node.append(line(x, top - 4, x, top + rows.length * tall, "axis"));
    if (x > left + 16 && x < width - 16) node.append(text(x, 12, name, { "text-anchor": "middle" }));
  }
  let said = -20;
  rows.forEach(([, digits], index) => {
    const y = top + index * tall, each = (width - left) / digits.length;
    if (!thin || (names[index] !== names[index - 1] && y - said > 10)) {
      node.append(text(left - 6, y + 10, names[index], { "text-anchor": "end", "font-size": 11 }));
      said = y;
    }
    for (let from = 0; from < digits.length;) {
      let to = from;
      while (to < digits.length && digits[to] === digits[from]) to += 1;
      node.append(svg("rect", { x: left + from * each, y: y + 0.5, width: (to - from) * each + 0.2, height: tall - (thin ? 0.5 : 1), fill: digits[from] === "0" ? paint("paper") : paint("good"), "fill-opacity": digits[from] === "0" ? 1 : 0.12 + 0.88 * digits[from] / 9 }));
      from = to;
    }
  });
  explain(node, (event) => {
    const [px, py] = inside(node, event), row = rows[Math.floor((py - top) / tall)], step = Math.floor((px - left) / (width - left) * (row ? row[1].length : 1));
    if (!row || step < 0) return "";
    const from = first + (last - first) / row[1].length * step;
    return `${row[0]}\n${day(from)} ${time(from)}\n${row[1][step] === "0" ? "empty" : `about ${percent(row[1][step] / 9)} of its memory in use`}`;
  });
  byId("occupancy-note").textContent = (rows.length < gpus ? `The ${many(rows.length)} most used of ${many(gpus)} GPUs. ` : "") + "Mean memory in use, pale for little, full colour for all of it.";
  return [node];
});
