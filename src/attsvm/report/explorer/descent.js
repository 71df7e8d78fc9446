/* Training: loss, attention and gradient of a state, and the descent that follows them. */

import { gap, marginOf, norm, power, rowsOf, size, times } from "./margin.js";

const softplus = (x) => (x > 0 ? x + Math.log1p(Math.exp(-x)) : Math.log1p(Math.exp(x)));

/** Loss, attention and downhill direction of a state, as a function of the prompt w and the head
    v. Everything is relative to the winning token, and each sequence carries its scale as a
    logarithm: the direction keeps all its digits when the other tokens weigh 1e-300 or less.
    `push` (for w) and `pull` (for v) are downhill up to a positive factor; in mode "shared" push
    is the gradient. */
export function landscape({ sequences, mode }) {
  const n = sequences.length;
  const parts = sequences.map(({ tokens, weight, scores, label, chosen }) => ({
    x: Float64Array.from(tokens, (token) => weight * token[0]),
    y: Float64Array.from(tokens, (token) => weight * token[1]),
    tokens,
    weight,
    label,
    chosen,
    gamma: Float64Array.from(mode === "fixed" ? scores : tokens, (score) =>
      mode === "fixed" ? score : 0,
    ),
    target: Float64Array.from(tokens, (_, t) => (chosen.includes(t) ? 1 / chosen.length : 0)),
    r: new Float64Array(tokens.length),
  }));
  const scales = new Float64Array(n),
    slopes = new Float64Array(n);
  const vectors = new Float64Array(2 * n),
    means = new Float64Array(2 * n);
  const added = (values, logs) => {
    let top = -Infinity;
    for (let i = 0; i < n; i++)
      if (values[2 * i] || values[2 * i + 1]) top = Math.max(top, logs[i]);
    const sum = [0, 0];
    for (let i = 0; top > -Infinity && i < n; i++) {
      const c = Math.exp(logs[i] - top);
      sum[0] += c * values[2 * i];
      sum[1] += c * values[2 * i + 1];
    }
    return sum;
  };
  return (w, v) => {
    let loss = 0,
      mass = 0;
    const picked = [];
    for (let i = 0; i < n; i++) {
      const { x, y, r, gamma, target, chosen, label, tokens, weight } = parts[i];
      const count = x.length;
      let win = 0;
      for (let t = 1; t < count; t++) {
        if ((x[t] - x[win]) * w[0] + (y[t] - y[win]) * w[1] > 0) win = t;
      }
      picked.push(win);
      let rest = 0;
      for (let t = 0; t < count; t++) {
        r[t] = (x[t] - x[win]) * w[0] + (y[t] - y[win]) * w[1];
        if (t !== win) rest += Math.exp(r[t]);
      }
      const lse = Math.log1p(rest);
      for (const t of chosen) mass += Math.exp(r[t] - lse) / n;
      let gx = 0,
        gy = 0;
      if (mode === "shared") {
        for (let t = 0; t < count; t++) {
          const c = (target[t] - Math.exp(r[t] - lse)) / n;
          gx += c * (x[t] - x[win]);
          gy += c * (y[t] - y[win]);
          if (target[t]) loss += (target[t] * (Math.log(target[t]) - r[t] + lse)) / n;
        }
        vectors[2 * i] = gx;
        vectors[2 * i + 1] = gy;
        continue;
      }
      if (mode === "joint") {
        for (let t = 0; t < count; t++)
          gamma[t] = label * (tokens[t][0] * v[0] + tokens[t][1] * v[1]);
      }
      let most = -Infinity; // the largest logit of a token with another score than the winner
      for (let t = 0; t < count; t++) if (gamma[t] !== gamma[win] && r[t] > most) most = r[t];
      let share = 0;
      for (let t = 0; t < count; t++) {
        if (gamma[t] !== gamma[win]) share += Math.exp(r[t] - most) * (gamma[win] - gamma[t]);
      }
      const D = most === -Infinity ? 0 : Math.exp(most - lse) * share; // what attention loses
      const u = gamma[win] - D;
      loss += softplus(-u) / n;
      slopes[i] = -softplus(u); // log |l'(u)| of the logistic loss
      scales[i] = slopes[i] + most - lse;
      for (let t = 0; most > -Infinity && t < count; t++) {
        const c =
          gamma[t] === gamma[win]
            ? -Math.exp(r[t] - lse) * share
            : Math.exp(r[t] - most) * (gamma[win] - gamma[t] - D);
        gx += c * (x[win] - x[t]);
        gy += c * (y[win] - y[t]);
      }
      vectors[2 * i] = gx;
      vectors[2 * i + 1] = gy;
      if (mode === "joint") {
        let top = -Infinity;
        for (let t = 0; t < count; t++) if ((x[t] || y[t]) && r[t] > top) top = r[t];
        let mx = 0,
          my = 0;
        for (let t = 0; top > -Infinity && t < count; t++) {
          const c = (Math.exp(r[t] - top) * label) / weight;
          mx += c * x[t];
          my += c * y[t];
        }
        means[2 * i] = mx;
        means[2 * i + 1] = my;
        slopes[i] += top > -Infinity ? top - lse : 0;
      }
    }
    if (mode === "shared") scales.fill(0);
    return { loss, mass, picked, push: added(vectors, scales), pull: added(means, slopes) };
  };
}

/** Steps at which the path is kept: all early ones, then evenly on a logarithmic scale. */
export function marks(steps) {
  const kept = new Set([0, steps]);
  for (let k = 1; k <= Math.min(40, steps); k++) kept.add(k);
  for (let x = Math.log(40); x < Math.log(steps); x += 0.03) kept.add(Math.round(Math.exp(x)));
  return [...kept].sort((a, b) => a - b);
}

/** Mirror descent of the lp potential with steps of one length (p = 2: normalised gradient
    descent; p = Infinity: descent by signs). In mode "shared" the steps shrink with the gradient.
    Returns one record { step, w, v, loss, mass, picked } per mark. */
export function descend(state, steps = 1000, lr = 0.1, kept = marks(steps)) {
  const { p, mode } = state;
  const q = p === Infinity ? 1 : p / (p - 1);
  let w = [...state.start],
    v = [...(state.headStart ?? [0, 0])];
  const dual = p === Infinity ? w : w.map((x) => power(x, p - 1));
  const look = landscape(state),
    records = [];
  let next = 0;
  for (let step = 0; ; step++) {
    const now = look(w, v);
    if (step === kept[next]) {
      records.push({
        step,
        w: [...w],
        v: [...v],
        loss: now.loss,
        mass: now.mass,
        picked: now.picked,
      });
      next++;
    }
    if (step === steps) return records;
    const length = norm(now.push, q);
    if (length > 0) {
      const rate = mode === "shared" ? 5 * lr : lr / length;
      for (const j of [0, 1]) {
        if (p === Infinity) w[j] += rate * length * Math.sign(now.push[j]);
        else {
          dual[j] += rate * now.push[j];
          w[j] = p === 2 ? dual[j] : power(dual[j], 1 / (p - 1));
        }
      }
    }
    const lift = size(now.pull);
    if (lift > 0) v = [v[0] + (lr / lift) * now.pull[0], v[1] + (lr / lift) * now.pull[1]];
  }
}

/** What a state leads to: { solved, local, path, scale }. `path` has the records of the descent and
    their gaps to its limit; `local` is the solution of the tokens that the descent selects where
    these are not the chosen ones; `scale` is the length of a prompt at the rim of the disc. */
export function outcome(state) {
  const solved = marginOf(state);
  const unit = Math.max(...rowsOf(state).map(({ a }) => size(a))) || 1;
  const zoom = unit > 0.2 && unit < 12 ? 1 : unit / 2; // steps of 0.1 suit tokens of size one
  const sequences = state.sequences.map((q) => ({
    ...q,
    tokens: q.tokens.map((token) => times(1 / zoom, token)),
  }));
  const records = descend({ ...state, start: times(zoom, state.start), sequences }).map(
    (record) => ({ ...record, w: times(1 / zoom, record.w) }),
  );
  const { picked } = records[records.length - 1];
  const strayed = state.sequences.flatMap((q, i) => (q.chosen.includes(picked[i]) ? [] : [i]));
  const proper = (found) => found.status === "optimal" && found.norm > 0;
  let local = null;
  if (strayed.length && state.mode === "fixed") {
    const found = marginOf(
      state,
      picked.map((t) => [t]),
    );
    // a limit of training only where every rival at the margin has a lower score
    const lower = ({ i, s, t }) =>
      state.sequences[i].scores[s] > state.sequences[i].scores[t];
    const limit = proper(found) && found.support.every((k) => lower(found.rows[k]));
    local = { ...found, strayed, picked, limit };
  }
  const goal = local ?? solved;
  const known = local ? local.limit : proper(solved);
  const path = {
    records,
    strayed,
    far: Math.max(...records.map((record) => size(record.w))),
    gaps: known ? records.map((record) => gap(record.w, goal.w)) : null,
  };
  const blamed = solved.conflict.map((k) => solved.rows[k]).filter((row) => row.b && size(row.a));
  const near = proper(solved) ? [size(solved.w)] : blamed.map((row) => 1.6 / size(row.a));
  const scale = Math.max(...near, local?.limit ? size(local.w) : 0) / 0.62;
  return { solved, local, path, scale: scale > 0 && Number.isFinite(scale) ? scale : 1 };
}
