/* The explorer: sequences of tokens in the plane, the prompt of largest margin, and the descent
   that turns towards it, drawn and moved by hand. */

import { dot, minus, norm, size, times } from "./margin.js";
import { outcome } from "./descent.js";
import { complete, decode, encode } from "./state.js";
import {
  DISC,
  HALF,
  RIM,
  arrow,
  clipped,
  exponentOf,
  f,
  line,
  make,
  round,
  set,
  show,
} from "./shapes.js";
import { LETTERS, angle, degreesOf, list, nameOf, short, words } from "./words.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const PAGE = `
<p class="axp-say" data-is="say"></p>
<div class="axp-bar">
  <label><span>Example</span><select aria-label="Example" data-is="menu"></select></label>
  <label class="axp-wide"><span>Norm p</span><input type="range" min="0" max="${1 / 1.1}" step="any"
    data-is="p"><output class="axp-number" data-is="pwords"></output></label>
  <button type="button" data-is="reset">Start again</button>
</div>
<div class="axp-panels">
  <figure><svg viewBox="0 0 400 400" role="group" data-is="plane"
      aria-label="Tokens in the plane. Tab to a token, move it with the arrow keys, choose it with
Enter."></svg>
    <figcaption><b>Tokens. </b>The token of a sequence that lies farthest along the arrow gets its
      attention. Drag tokens; press one to choose it. The green bars are the margin: how far each
      chosen token is ahead of a support token, which has a green ring.</figcaption></figure>
  <figure><svg viewBox="0 0 400 400" role="group" data-is="prompts"
      aria-label="Prompts in the plane: the half-planes of the margins, and the descent."></svg>
    <figcaption><b>Prompts. </b>Each line is a rival to beat; in the green area all are beaten, and
      its shortest prompt is the best. Training starts at the diamond. Beyond the inner circle
      lengths are logarithmic.</figcaption></figure>
</div>
<p class="axp-verdict" data-is="verdict"></p>
<p class="axp-hidden" aria-live="polite" data-is="spoken"></p>
<div class="axp-bar">
  <button type="button" data-is="play">Replay</button>
  <label class="axp-wide"><span>Training</span><input type="range" min="0" step="1"
      aria-label="Step of the descent" data-is="time"><output class="axp-number"
      data-is="step"></output></label>
</div>
<div class="axp-curves" data-is="curves"></div>`;

/** Put an explorer into an element. `given` is { state, sentence, presets: [{ key, name, say,
    state }] } with `own`, what the list of examples calls the state, or `key`, which of them it
    is. With `options.address` the address follows what the reader does. */
export function mount(element, given, options = {}) {
  let state = complete(given.state);
  let solved,
    local,
    path,
    frame = 0,
    drag = null,
    playing = 0,
    scale = 1,
    view;
  const presets = given.presets ?? [];

  element.classList.add("axp");
  element.innerHTML = PAGE;
  const part = (name) => element.querySelector(`[data-is="${name}"]`);
  const [sentence, menu, reset] = ["say", "menu", "reset"].map(part);
  const [slider, sliderWords] = ["p", "pwords"].map(part);
  const [plane, prompts, verdict, spoken] = ["plane", "prompts", "verdict", "spoken"].map(part);
  const [play, time, timeWords] = ["play", "time", "step"].map(part);
  if (given.own) menu.append(make("option", { value: "own" }, given.own));
  presets.forEach((preset, k) => menu.append(make("option", { value: String(k) }, preset.name)));
  const curves = ["loss", "attention on the chosen", "angle to the limit"].map((title) => {
    const value = make("output", { class: "axp-number" });
    const marker = make("line", { class: "axp-now", y1: 0, y2: 60 });
    const curve = make("path", { class: "axp-curve" });
    const frame = { viewBox: "0 0 200 60", preserveAspectRatio: "none", "aria-hidden": "true" };
    const axis = make("path", { class: "axp-axis", d: "M0 60H200" });
    const svg = make("svg", frame, axis, marker, curve);
    part("curves").append(make("div", {}, make("span", {}, title), value, svg));
    return { value, marker, curve };
  });

  const layer = (svg, name, kind) => {
    const node = make(name, { class: `axp-${kind}` });
    svg.append(node);
    return node;
  };
  let parts;
  const at = (token) => [
    HALF + ((token[0] - view.x) / view.half) * 186,
    HALF - ((token[1] - view.y) / view.half) * 186,
  ];

  function fitView() {
    const all = state.sequences.flatMap((q) => q.tokens);
    const span = (j) => [Math.min(...all.map((a) => a[j])), Math.max(...all.map((a) => a[j]))];
    const [[left, right], [low, high]] = [span(0), span(1)];
    const reach = Math.max(...[left, right, low, high].map(Math.abs));
    const extent = Math.max(right - left, high - low) / 2 || 1;
    view =
      reach < 2.5 * extent
        ? { x: 0, y: 0, half: 1.25 * reach }
        : { x: (left + right) / 2, y: (low + high) / 2, half: 1.4 * extent };
  }

  function build() {
    fitView();
    plane.replaceChildren();
    prompts.replaceChildren();
    parts = {
      cross: layer(plane, "path", "axis"),
      spokes: [],
      marks: [],
      chords: [],
      edges: [],
      names: [],
    };
    state.sequences.forEach((_, i) => {
      parts.spokes.push(layer(plane, "path", `spoke axp-c${i % 5}`));
    });
    for (const kind of ["level", "bar", "local", "head", "best", "trained"]) {
      parts[kind] = layer(plane, "path", kind);
    }
    parts.note = layer(plane, "text", "note");
    parts.stacks = layer(plane, "text", "note");
    set(parts.note, { x: 8, y: 392 });
    set(parts.stacks, { x: 8, y: 18 });
    const many = state.sequences.reduce((sum, q) => sum + q.tokens.length, 0);
    const radius = many <= 16 ? 13 : many <= 30 ? 11 : 9;
    state.sequences.forEach(({ tokens }, i) =>
      tokens.forEach((_, t) => {
        const label = make("text", { dy: "0.35em" }, nameOf(i, t));
        const mark = make(
          "g",
          {
            class: `axp-token axp-c${i % 5}`,
            tabindex: "0",
            role: "button",
            "data-i": i,
            "data-t": t,
          },
          make("circle", { r: "22", class: "axp-grip" }),
          make("circle", { r: radius + 4, class: "axp-halo" }),
          make("circle", { r: radius, class: "axp-dot" }),
          label,
        );
        if (radius < 13) label.classList.add("axp-small");
        plane.append(mark);
        parts.marks.push({ mark, i, t });
      }),
    );
    const disc = make("circle", { cx: HALF, cy: HALF, r: DISC, class: "axp-disc" });
    prompts.append(make("circle", { cx: HALF, cy: HALF, r: RIM, class: "axp-rim" }), disc);
    parts.area = layer(prompts, "path", "area");
    parts.ball = layer(prompts, "path", "ball");
    state.sequences.forEach((_, i) => {
      parts.chords.push(layer(prompts, "path", `chord axp-c${i % 5}`));
      parts.edges.push(layer(prompts, "path", `edge axp-c${i % 5}`));
    });
    for (const kind of ["localray", "ray", "course", "bestprompt"])
      parts[kind] = layer(prompts, "path", kind);
    parts.point = make("circle", { r: 5, class: "axp-point" });
    parts.runner = make("circle", { r: 6, class: "axp-runner" });
    parts.start = make(
      "g",
      { class: "axp-start", tabindex: "0", role: "button" },
      make("circle", { r: "22", class: "axp-grip" }),
      make("path", { d: "M0-7L7 0L0 7L-7 0Z" }),
    );
    prompts.append(parts.point, parts.runner, parts.start);
    for (let k = 0; k < 8; k++) parts.names.push(layer(prompts, "text", "name"));
    for (const kind of ["promptnote", "length"]) parts[kind] = layer(prompts, "text", "note");
    set(parts.promptnote, { x: 8, y: 18 });
    set(parts.length, { x: 8, y: 392 });
  }

  /** Where a prompt is drawn: true inside the circle, its length logarithmic outside. */
  function place(w) {
    const length = size(w) / scale;
    const r =
      length <= 1
        ? DISC * length
        : DISC + ((RIM - DISC) * Math.log(length)) / Math.max(Math.log(path.far / scale), 1e-9);
    return length === 0 ? [HALF, HALF] : [HALF + (r * w[0]) / size(w), HALF - (r * w[1]) / size(w)];
  }

  function compute() {
    ({ solved, local, path, scale } = outcome(state));
    set(time, { max: String(path.records.length - 1) });
    if (!playing) time.value = String(path.records.length - 1);
    drawCurves();
  }

  const along = (step) =>
    (200 * Math.log1p(step)) / Math.log1p(path.records[path.records.length - 1].step);

  function drawCurves() {
    const { records, gaps } = path;
    const most = Math.max(...records.map((record) => record.loss)) || 1;
    const logs = gaps?.map((g) => Math.log10(Math.max(degreesOf(g), 1e-3)));
    const heights = [
      records.map((r) => r.loss / most),
      records.map((r) => r.mass),
      logs?.map((x) => (x + 3) / (Math.log10(180) + 3)),
    ];
    curves.forEach((curve, k) =>
      set(curve.curve, {
        d: heights[k]
          ? line(records.map((record, j) => [along(record.step), 57 - 54 * heights[k][j]]))
          : "",
      }),
    );
  }

  function drawTokens() {
    const feasible = solved.status === "optimal" && solved.norm > 0;
    const origin = [HALF, HALF];
    const [cx, cy] = at([0, 0]);
    set(parts.cross, { d: `M0 ${f(cy)}H400M${f(cx)} 0V400` });
    state.sequences.forEach(({ tokens, chosen }, i) =>
      set(parts.spokes[i], {
        d: tokens
          .map((token, t) => (t === chosen[0] ? "" : line([at(tokens[chosen[0]]), at(token)])))
          .join(""),
      }),
    );
    const towards = (w, length) => [
      HALF + (length * w[0]) / size(w),
      HALF - (length * w[1]) / size(w),
    ];
    set(parts.best, { d: feasible ? arrow(origin, towards(solved.w, 150)) : "" });
    set(parts.local, { d: local?.limit ? arrow(origin, towards(local.w, 150)) : "" });
    const record = path.records[Number(time.value)];
    set(parts.trained, { d: size(record.w) ? arrow(origin, towards(record.w, 105)) : "" });
    const head =
      solved.head?.status === "optimal" ? times(1 / size(solved.head.w), solved.head.w) : null;
    set(parts.head, {
      d: head
        ? line([
            [cx - 400 * head[1], cy - 400 * head[0]],
            [cx + 400 * head[1], cy + 400 * head[0]],
          ])
        : "",
    });
    const bars = [],
      levels = [];
    const touching = new Set(),
      blamed = new Set();
    if (feasible) {
      const u = times(1 / size(solved.w), solved.w);
      for (const k of solved.support) {
        const { i, s, t } = solved.rows[k];
        const [from, to] = [state.sequences[i].tokens[t], state.sequences[i].tokens[s]];
        // along the prompt from the support token, then across to the chosen one; or the other way
        // round where that corner lies outside of the picture
        const ahead = times(dot(u, minus(to, from)), u);
        const turn = minus(from, times(-1, ahead));
        const inside = at(turn).every((x) => x > 4 && x < 396);
        const corner = inside ? turn : minus(to, ahead);
        bars.push(line(inside ? [at(from), at(turn)] : [at(corner), at(to)]));
        levels.push(line(inside ? [at(turn), at(to)] : [at(from), at(corner)]));
        touching.add(`${i},${t}`);
      }
    }
    for (const k of solved.conflict) blamed.add(`${solved.rows[k].i},${solved.rows[k].t}`);
    set(parts.bar, { d: bars.join("") });
    set(parts.level, { d: levels.join("") });
    for (const { mark, i, t } of parts.marks) {
      const token = state.sequences[i].tokens[t],
        chosen = state.sequences[i].chosen.includes(t);
      const key = `${i},${t}`,
        supports = touching.has(key),
        wrong = blamed.has(key);
      const [x, y] = at(token);
      mark.setAttribute("transform", `translate(${f(x)} ${f(y)})`);
      mark.classList.toggle("axp-chosen", chosen);
      mark.classList.toggle("axp-support", supports);
      mark.classList.toggle("axp-wrong", wrong);
      mark.setAttribute("aria-pressed", String(chosen));
      mark.setAttribute(
        "aria-label",
        `${nameOf(i, t)}: token ${t + 1} of sequence ${LETTERS[i]}${chosen ? ", chosen" : ""}${
          supports ? ", at the margin" : ""
        }${wrong ? ", part of the contradiction" : ""}, at ${short(token[0])}, ${short(token[1])}`,
      );
    }
    const heap = {};
    for (const { i, t } of parts.marks) {
      const [x, y] = at(state.sequences[i].tokens[t]);
      (heap[`${Math.round(x / 2)},${Math.round(y / 2)}`] ??= []).push(nameOf(i, t));
    }
    const stacks = Object.values(heap).filter((names) => names.length > 1);
    parts.stacks.textContent = stacks
      .map((names) => `${list(names)} lie on one another`)
      .join("; ");
    const sideOf = (sign) =>
      list(state.sequences.flatMap((q, i) => (q.label * sign > 0 ? [LETTERS[i]] : [])));
    parts.note.textContent =
      state.mode !== "joint"
        ? ""
        : `dashed: the head's boundary, ${sideOf(1) || "none"} against ${sideOf(-1) || "none"}`;
  }

  function drawPrompts() {
    const feasible = solved.status === "optimal" && solved.norm > 0;
    const flat = (w) => [HALF + (DISC * w[0]) / scale, HALF - (DISC * w[1]) / scale];
    let area = round(scale);
    for (const row of solved.rows) area = clipped(area, row);
    set(parts.area, { d: feasible && area.length ? `${line(area.map(flat))}Z` : "" });
    const circle = round(1);
    set(parts.ball, {
      d: feasible
        ? `${line(circle.map((u) => flat(times(solved.norm / norm(u, state.p), u))))}Z`
        : "",
    });
    const deciding = new Set(feasible ? solved.support : solved.conflict);
    const chords = parts.chords.map(() => []),
      edges = parts.edges.map(() => []);
    const names = [];
    solved.rows.forEach((row, k) => {
      const length = size(row.a),
        far = row.b / length;
      if (!length || far >= scale) return;
      const u = times(1 / length, row.a),
        reach = Math.sqrt(scale * scale - far * far);
      const ends = [1, -1].map((sign) => [
        far * u[0] - sign * reach * u[1],
        far * u[1] + sign * reach * u[0],
      ]);
      const decides = deciding.has(k) || (row.equal && feasible);
      (decides ? edges : chords)[row.i].push(line(ends.map(flat)));
      if (
        decides &&
        names.length < parts.names.length &&
        !(row.equal && solved.rows[k - 1]?.t === row.t)
      ) {
        const end = ends.map(flat).sort((p, q) => crowd(p, names) - crowd(q, names))[0];
        names.push({
          at: [HALF + (end[0] - HALF) * 1.1, HALF + (end[1] - HALF) * 1.1],
          i: row.i,
          word: solved.blamed
            ? LETTERS[row.i]
            : `${row.equal ? `${nameOf(row.i, row.s)} = ` : ""}${nameOf(row.i, row.t)}`,
        });
      }
    });
    parts.chords.forEach((node, i) => set(node, { d: chords[i].join("") }));
    parts.edges.forEach((node, i) => {
      set(node, { d: edges[i].join("") });
      node.classList.toggle("axp-wrong", !feasible);
    });
    parts.names.forEach((node, k) => {
      node.textContent = names[k]?.word ?? "";
      if (names[k])
        set(node, {
          x: f(names[k].at[0]),
          y: f(names[k].at[1] + 4),
          class: `axp-name axp-c${names[k].i % 5}`,
        });
    });
    const rayOf = (w) =>
      line([place(w), [HALF + (RIM * w[0]) / size(w), HALF - (RIM * w[1]) / size(w)]]);
    show(parts.point, feasible);
    set(parts.ray, { d: feasible ? rayOf(solved.w) : "" });
    set(parts.bestprompt, { d: feasible ? arrow([HALF, HALF], place(solved.w)) : "" });
    set(parts.localray, { d: local?.limit ? rayOf(local.w) : "" });
    if (feasible) set(parts.point, { cx: f(place(solved.w)[0]), cy: f(place(solved.w)[1]) });
    const now = Number(time.value);
    const shown = path.records.slice(0, now + 1).map((record) => place(record.w));
    set(parts.course, { d: line(shown) });
    const [x, y] = shown[now];
    set(parts.runner, { cx: f(x), cy: f(y) });
    const [sx, sy] = place(state.start);
    set(parts.start, {
      transform: `translate(${f(sx)} ${f(sy)})`,
      "aria-label":
        `Start of the descent at ${state.start.map(short).join(", ")}; ` +
        "move it with the arrow keys",
    });
    parts.promptnote.textContent = feasible ? "" : "no prompt beats them all";
    parts.length.textContent = `inner circle: length ${short(scale)}`;
    const record = path.records[now];
    timeWords.textContent = `step ${record.step.toLocaleString("en")}`;
    set(time, { "aria-valuetext": `step ${record.step}` });
    curves[0].value.textContent = short(record.loss);
    curves[1].value.textContent = `${(100 * record.mass).toFixed(record.mass > 0.995 ? 2 : 0)}%`;
    curves[2].value.textContent = path.gaps ? angle(path.gaps[now]) : "–";
    for (const curve of curves)
      set(curve.marker, { x1: f(along(record.step)), x2: f(along(record.step)) });
  }

  const crowd = (point, names) =>
    names.reduce((sum, name) => sum + (size(minus(name.at, point)) < 26 ? 1000 : 0), point[1]);

  function draw(recompute = true) {
    frame = 0;
    if (recompute) compute();
    drawTokens();
    drawPrompts();
    verdict.textContent = words(state, { solved, local, path });
    verdict.classList.toggle("axp-wrong", solved.status !== "optimal");
    const p = state.p;
    slider.value = String(1 / 1.1 - (p === Infinity ? 0 : 1 / p));
    sliderWords.textContent =
      p === Infinity ? "p = ∞" : `p = ${p.toFixed(2).replace(/\.?0+$/, "")}`;
    set(slider, { "aria-valuetext": p === Infinity ? "infinity" : p.toFixed(2) });
  }

  let stale = false;
  function later(recompute = true) {
    stale ||= recompute;
    if (!frame)
      frame = requestAnimationFrame(() => {
        const all = stale;
        stale = false;
        draw(all);
      });
  }

  let saying = 0;
  function changed() {
    stop();
    later();
    clearTimeout(saying);
    saying = setTimeout(() => {
      spoken.textContent = words(state, { solved, local, path });
      if (options.address) {
        try {
          history.replaceState(null, "", `#explore=${encode(state)}`);
        } catch {
          /* a frame without an address */
        }
      }
    }, 300);
  }

  function stop() {
    if (playing) cancelAnimationFrame(playing);
    playing = 0;
    play.textContent = "Replay";
    time.value = time.max;
  }

  function replay() {
    stop();
    play.textContent = "Stop";
    const began = performance.now();
    const tick = (now) => {
      const share = Math.min(1, Math.max(0, (now - began) / 3500));
      time.value = String(Math.round(share * Number(time.max)));
      draw(false);
      if (share < 1) playing = requestAnimationFrame(tick);
      else stop();
    };
    playing = requestAnimationFrame(tick);
  }

  function choose(i, t) {
    const { chosen, scores } = state.sequences[i];
    if (state.mode === "shared") {
      const others = chosen.filter((s) => s !== t);
      if (others.length !== chosen.length && !others.length) return;
      state.sequences[i].chosen =
        others.length === chosen.length ? [...chosen, t].sort((a, b) => a - b) : others;
    } else if (chosen[0] !== t) {
      [scores[chosen[0]], scores[t]] = [scores[t], scores[chosen[0]]];
      state.sequences[i].chosen = [t];
    }
    changed();
  }

  function moveToken(i, t, to) {
    const inside = (x, centre) => Math.min(centre + view.half, Math.max(centre - view.half, x));
    state.sequences[i].tokens[t] = [inside(to[0], view.x), inside(to[1], view.y)];
    changed();
  }

  function moveStart(to) {
    const most = 0.95 * (drag?.scale ?? scale),
      length = size(to);
    state.start = length > most ? times(most / length, to) : to;
    changed();
  }

  function release() {
    const last = drag;
    drag = null;
    element.classList.remove("axp-dragging");
    return last;
  }

  const grabbed = (event) => event.target.closest?.(".axp-token, .axp-start");
  const pointOf = (event, svg) => {
    const box = svg.getBoundingClientRect();
    return [
      ((event.clientX - box.left) / box.width) * 400,
      ((event.clientY - box.top) / box.height) * 400,
    ];
  };
  for (const svg of [plane, prompts]) {
    svg.addEventListener("pointerdown", (event) => {
      const mark = grabbed(event);
      if (!mark || event.button) return;
      event.preventDefault();
      mark.focus({ preventScroll: true });
      mark.setPointerCapture(event.pointerId);
      drag = { mark, from: pointOf(event, svg), moved: false, scale };
      element.classList.add("axp-dragging");
    });
    // touch-action does not reach the parts of a drawing: a finger on a token must not scroll
    svg.addEventListener(
      "touchstart",
      (event) => {
        if (grabbed(event)) event.preventDefault();
      },
      { passive: false },
    );
    const follow = (event) => {
      const to = pointOf(event, svg);
      if (!drag.moved && size(minus(to, drag.from)) < 4) return;
      drag.moved = true;
      const { i, t } = drag.mark.dataset;
      const across = (radius) => [(to[0] - HALF) / radius, (HALF - to[1]) / radius];
      if (i === undefined) moveStart(times(drag.scale, across(DISC)));
      else moveToken(Number(i), Number(t), minus([view.x, view.y], times(-view.half, across(186))));
    };
    const dragged = () => drag && svg.contains(drag.mark);
    svg.addEventListener("pointermove", (event) => {
      if (dragged()) follow(event);
    });
    svg.addEventListener("pointercancel", () => {
      if (dragged()) release();
    });
    svg.addEventListener("pointerup", (event) => {
      if (!dragged()) return;
      follow(event); // a finger's last moves may come with its end only
      const { moved, mark } = release();
      if (!moved && mark.dataset.i !== undefined)
        choose(Number(mark.dataset.i), Number(mark.dataset.t));
    });
    svg.addEventListener("keydown", (event) => {
      const mark = grabbed(event);
      if (!mark) return;
      const { i, t } = mark.dataset;
      const direction = ARROWS[event.key];
      if (direction) {
        event.preventDefault();
        const by = (length) => times(-(event.shiftKey ? 0.1 : 0.02) * length, direction);
        if (i === undefined) moveStart(minus(state.start, by(scale)));
        else moveToken(Number(i), Number(t), minus(state.sequences[i].tokens[t], by(view.half)));
      } else if ((event.key === "Enter" || event.key === " ") && i !== undefined) {
        event.preventDefault();
        choose(Number(i), Number(t));
      }
    });
  }
  slider.addEventListener("input", () => {
    const p = exponentOf(1 / 1.1 - Number(slider.value));
    state.p = Math.abs(p - 2) < 0.08 ? 2 : p > 60 ? Infinity : Math.max(1.1, p);
    changed();
  });
  slider.addEventListener("keydown", (event) => {
    if (!ARROWS[event.key]) return;
    const sign = ARROWS[event.key][0] + ARROWS[event.key][1];
    event.preventDefault();
    const stops = [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75, 2, 2.25, 2.5, 3, 4, 6, 10, 20, Infinity];
    const beyond = stops.filter((p) => sign * (p - state.p) > 1e-9);
    if (beyond.length) state.p = sign > 0 ? beyond[0] : beyond[beyond.length - 1];
    changed();
  });
  time.addEventListener("input", () => {
    const chosen = time.value;
    stop();
    time.value = chosen;
    later(false);
  });
  play.addEventListener("click", () => (playing ? (stop(), later(false)) : replay()));

  let origin = state;
  function take(next, say) {
    stop();
    state = complete(next);
    origin = next;
    sentence.textContent = say ?? given.sentence ?? "";
    build();
    draw();
  }
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  menu.addEventListener("change", () => {
    const preset = presets[Number(menu.value)];
    take(preset ? preset.state : given.state, preset ? preset.say : given.sentence);
    changed();
    if (!still) replay();
  });
  reset.addEventListener("click", () => {
    take(origin, sentence.textContent);
    changed();
    if (!still) replay();
  });

  const saved =
    options.address && location.hash.startsWith("#explore=")
      ? decode(decodeURIComponent(location.hash.slice(9)))
      : null;
  menu.value = given.own ? "own" : String(presets.findIndex((preset) => preset.key === given.key));
  take(given.state, given.sentence);
  if (saved) {
    state = saved;
    build();
    draw();
  }
  if (!still && !saved && "IntersectionObserver" in globalThis) {
    const watcher = new IntersectionObserver(
      ([entry]) => {
        if (!entry.isIntersecting) return;
        watcher.disconnect();
        replay();
      },
      { threshold: 0.4 },
    );
    watcher.observe(prompts);
  }
}

/* Where it stands: on a page, in elements that hold their data as JSON. */

if (typeof document !== "undefined") {
  document.querySelectorAll("[data-attsvm-explorer]:not(.axp)").forEach((element, k) => {
    const data = JSON.parse(element.querySelector('script[type="application/json"]').textContent);
    mount(element, data, { address: k === 0 });
  });
}
