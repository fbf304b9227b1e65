"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  for (const e of document.querySelectorAll("[data-needs-script]")) e.hidden = false;

  // One wording of each setting at a time: the chosen framework's, else the remedy's first.
  const pick = byId("framework");
  const showFramework = () => {
    for (const cure of document.querySelectorAll(".cure")) {
      const all = [...cure.querySelectorAll(".setting")];
      const shown = all.find((s) => s.dataset.framework === pick.value) || all[0];
      for (const s of all) s.hidden = s !== shown;
    }
  };
  if (pick) {
    pick.addEventListener("change", showFramework);
    showFramework();
  }

  // Folded tables are printed in full.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => {
    for (const d of opened) d.open = false;
  });

  const source = byId("timeline-data");
  if (!source) return;

  const data = JSON.parse(source.textContent);
  const svg = byId("tracks");
  const readout = byId("readout");
  const hint = readout.textContent;
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = data.lanes.length > 1 ? 46 : 0;
  const AXIS = 22, DEVICE = 24, HOST = 10, GAP = 2, BETWEEN = 10;
  const ROW = DEVICE + GAP + HOST + BETWEEN;
  const HEIGHT = AXIS + data.lanes.length * ROW;
  const SHORTEST = 0.5; // µs across the width
  const text = (i) => data.texts[i];
  let from = data.start, to = data.end, width = 0, queued = false;

  const element = (name, attributes, content) => {
    const e = document.createElementNS(NS, name);
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    if (content !== undefined) e.textContent = content;
    return e;
  };
  const round = (v) => Math.round(v * 100) / 100;
  const x = (us) => LEFT + ((us - from) / (to - from)) * (width - LEFT);
  const us = (px) => from + ((px - LEFT) / (width - LEFT)) * (to - from);

  const duration = (t) => {
    const a = Math.abs(t);
    if (a >= 1e6) return `${+(t / 1e6).toPrecision(4)} s`;
    if (a >= 1e3) return `${+(t / 1e3).toPrecision(4)} ms`;
    return `${+t.toPrecision(4)} µs`;
  };

  // First row that ends after t: rows of a lane are in order of time.
  const firstAfter = (rows, t) => {
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle][1] <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  // Pieces are snapped to half pixels.  Those too short to be seen alone compete for the half
  // pixel that they lie in, and the longest kind wins it: a picture of many is true on average.
  const UNIT = 0.5;
  const snap = (v) => Math.round(v / UNIT) * UNIT;

  const addRow = (group, rows, y, height) => {
    let drawnTo = -1, cell = -1, kinds = new Map();
    const add = (i, a, b) => {
      group.append(element("rect", { class: "a-" + text(rows[i][2]), "data-i": i, x: a, y, width: round(b - a), height }));
      drawnTo = b;
    };
    const settle = () => {
      if (kinds.size && cell >= drawnTo) {
        const [first] = [...kinds.values()].sort((p, q) => q.time - p.time);
        add(first.i, cell, cell + UNIT);
      }
      kinds = new Map();
    };
    for (let i = firstAfter(rows, from); i < rows.length && rows[i][0] < to; i++) {
      const start = Math.max(rows[i][0], from), end = Math.min(rows[i][1], to);
      const a = snap(x(start)), b = snap(x(end));
      if (b > a) {
        settle();
        if (b > drawnTo) add(i, Math.max(a, drawnTo), b);
        continue;
      }
      const at = Math.floor(x((start + end) / 2) / UNIT) * UNIT;
      if (at !== cell) settle();
      cell = at;
      const key = rows[i][2];
      const kind = kinds.get(key) || { i, time: 0 };
      kind.time += end - start;
      kinds.set(key, kind);
    }
    settle();
  };

  const axis = (group) => {
    const rough = (to - from) / Math.max(3, (width - LEFT) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    for (let t = Math.ceil(from / unit) * unit; t <= to; t += unit) {
      const at = round(x(t));
      group.append(element("line", { class: "grid", x1: at, x2: at, y1: AXIS - 6, y2: HEIGHT - BETWEEN }));
      const anchor = at > width - 40 ? "end" : at < LEFT + 20 ? "start" : "middle";
      group.append(element("text", { x: at, y: 11, "text-anchor": anchor }, duration(t)));
    }
  };

  const draw = () => {
    queued = false;
    width = svg.clientWidth || 960;
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const all = document.createDocumentFragment();
    data.lanes.forEach((lane, i) => {
      const y = AXIS + i * ROW;
      all.append(element("rect", { class: "ground", x: LEFT, y, width: width - LEFT, height: DEVICE }));
      all.append(element("rect", { class: "ground", x: LEFT, y: y + DEVICE + GAP, width: width - LEFT, height: HOST }));
    });
    axis(all);
    data.lanes.forEach((lane, i) => {
      const y = AXIS + i * ROW;
      if (LEFT) all.append(element("text", { x: 0, y: y + DEVICE / 2 + 4 }, `rank ${lane.rank}`));
      const low = round(DEVICE * 0.4);
      const layers = [["device", y, DEVICE], ["idle", y + DEVICE - low, low], ["host", y + DEVICE + GAP, HOST]];
      for (const [kind, top, height] of layers) {
        const group = element("g", { "data-lane": i, "data-kind": kind });
        addRow(group, lane[kind], top, height);
        all.append(group);
      }
    });
    for (const [start, name] of data.steps) {
      if (start < from || start > to) continue;
      const line = element("line", { class: "step", x1: round(x(start)), x2: round(x(start)), y1: AXIS - 4, y2: HEIGHT - BETWEEN });
      line.append(element("title", {}, name));
      all.append(line);
    }
    svg.replaceChildren(all);
    svg.dataset.from = from;
    svg.dataset.to = to;
  };
  const redraw = () => {
    if (!queued) requestAnimationFrame(draw);
    queued = true;
  };

  const show = (a, b) => {
    const span = Math.min(Math.max(b - a, SHORTEST), data.end - data.start);
    from = Math.min(Math.max(a + (b - a - span) / 2, data.start), data.end - span);
    to = from + span;
    redraw();
  };
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
  const move = (by) => show(from + by, to + by);
  const actions = {
    in: () => zoom(1 / 1.6),
    out: () => zoom(1.6),
    left: () => move((from - to) / 4),
    right: () => move((to - from) / 4),
    all: () => show(data.start, data.end),
  };

  const position = (event) => event.clientX - svg.getBoundingClientRect().left;
  svg.addEventListener("wheel", (event) => {
    const whole = to - from >= (data.end - data.start) * 0.999;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (whole && (sideways || event.deltaY > 0)) return; // let the page scroll on
    event.preventDefault();
    const delta = (event.deltaY || event.deltaX) * (event.deltaMode ? 30 : 1);
    if (sideways) move(((event.deltaX || event.deltaY) / (width - LEFT)) * (to - from));
    else zoom(Math.exp(Math.max(-1, Math.min(1, delta / 300))), us(position(event)));
  }, { passive: false });

  // Drag with one pointer, pinch with two.
  const pointers = new Map();
  svg.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, position(event));
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!pointers.has(event.pointerId)) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, position(event));
    const after = [...pointers.values()];
    svg.classList.add("moving");
    if (after.length === 1) {
      move(((before[0] - after[0]) / (width - LEFT)) * (to - from));
    } else {
      const factor = Math.abs(before[1] - before[0]) / Math.max(1, Math.abs(after[1] - after[0]));
      zoom(factor, us((after[0] + after[1]) / 2));
    }
  });
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, (event) => {
      pointers.delete(event.pointerId);
      svg.classList.remove("moving");
    });
  }
  svg.addEventListener("keydown", (event) => {
    const name = { "+": "in", "=": "in", "-": "out", "0": "all", ArrowLeft: "left", ArrowRight: "right" }[event.key];
    if (!name || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[name]();
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", actions[button.dataset.do]);
  }

  // Names come from the measured job: they are only ever set as text.
  const read = (target) => {
    for (const e of svg.querySelectorAll(".on")) e.classList.remove("on");
    if (!target || target.dataset.i === undefined) {
      readout.textContent = hint;
      return;
    }
    target.classList.add("on");
    const { lane, kind } = target.parentNode.dataset;
    const [start, end, , label, name] = data.lanes[lane][kind][target.dataset.i];
    const what = document.createElement("b");
    what.textContent = `${kind === "device" ? "busy" : kind}: ${text(label)}`;
    const where = `  ${duration(end - start)} from ${duration(start)}`;
    const rank = data.lanes.length > 1 ? `, rank ${data.lanes[lane].rank}` : "";
    readout.replaceChildren(what, where + rank + (text(name) ? `  ${text(name)}` : ""));
  };
  svg.addEventListener("pointerover", (event) => read(event.target.closest("rect[data-i]")));
  svg.addEventListener("pointerleave", () => read(null));

  const LABELS = {
    useful: "compute", compute: "compute, lost", comm: "communication", transfer: "copies", input: "input",
    host: "host", memory: "memory", device: "device", unknown: "unknown", launch: "host launches", python: "host, other",
  };
  const used = new Set();
  for (const lane of data.lanes) {
    for (const row of [...lane.device, ...lane.idle, ...lane.host]) used.add(text(row[2]));
  }
  for (const accent of Object.keys(LABELS).filter((a) => used.has(a))) {
    const key = document.createElement("i");
    key.className = "key a-" + accent;
    const item = document.createElement("li");
    item.append(key, LABELS[accent]);
    byId("tracks-keys").append(item);
  }

  new ResizeObserver(redraw).observe(svg);
  draw();
})();
