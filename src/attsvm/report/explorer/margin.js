/* The max-margin prompt in the plane, exactly: pure functions of a state.

   A state is { p, mode, start, headStart, sequences: [{ label, weight, tokens, scores, chosen }] }:
   tokens [[x, y], ...]; one score per token; chosen, the positions of the tokens to be selected.
   The logit of a token x under the prompt w is weight * <x, w>. Mode "fixed" has a head that gives
   every token its score; "joint" trains the head too, with labels of -1 and +1; "shared" trains
   the attention to divide itself equally among the chosen tokens of a sequence. */

export const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
export const cross = (a, b) => a[0] * b[1] - a[1] * b[0];
export const minus = (a, b) => [a[0] - b[0], a[1] - b[1]];
export const times = (c, a) => [c * a[0], c * a[1]];
export const size = (a) => Math.hypot(a[0], a[1]);
export const power = (x, r) => Math.sign(x) * Math.abs(x) ** r;

/** The lp norm, 1 <= p <= Infinity. */
export function norm(a, p) {
  const most = Math.max(Math.abs(a[0]), Math.abs(a[1]));
  if (p === Infinity || most === 0) return most;
  return most * (Math.abs(a[0] / most) ** p + Math.abs(a[1] / most) ** p) ** (1 / p);
}

/** 1 - cosine of the angle between two vectors, exact also when it is tiny; 1 without a
    direction. */
export function gap(a, b) {
  if (!size(a) || !size(b)) return 1;
  const d = minus(times(1 / size(a), a), times(1 / size(b), b));
  return dot(d, d) / 2;
}

/** Rows <a, w> >= b that say "the chosen tokens win". An equality is two rows of right-hand side
    0. Each row knows its sequence i, its chosen token s and the other token t. */
export function rowsOf(state, chosen = state.sequences.map((q) => q.chosen), relaxed = []) {
  const rows = [];
  state.sequences.forEach(({ tokens, weight }, i) => {
    const [s, ...equals] = chosen[i];
    tokens.forEach((token, t) => {
      if (t === s) return;
      const a = times(weight, minus(tokens[s], token));
      if (!equals.includes(t)) rows.push({ a, b: relaxed.includes(i) ? 0 : 1, i, s, t });
      else for (const sign of [1, -1]) rows.push({ a: times(sign, a), b: 0, i, s, t, equal: true });
    });
  });
  return rows;
}

/** The shortest point of the line <a, w> = b: by Hoelder's inequality, aligned with a. */
function foot({ a, b }, p) {
  const q = p === Infinity ? 1 : p / (p - 1);
  const most = Math.max(Math.abs(a[0]), Math.abs(a[1]));
  const u = times(1 / most, a);
  const total = Math.abs(u[0]) ** q + Math.abs(u[1]) ** q;
  const aligned = (x) => (x === 0 ? 0 : power(x, q - 1));
  return times(b / most / total, [aligned(u[0]), aligned(u[1])]);
}

/** Minimise ||w||_p subject to rows <a, w> >= b with b >= 0, exactly, by going through the
    candidates. In the plane the optimum is the shortest point of one row, or the point where two
    rows meet; for p = Infinity also the corner of a square on a row. Returns { status, w, norm,
    support, conflict }: support lists the rows that hold with equality, conflict the rows (three
    at most) of a contradiction: non-negative multiples of them add up to 0 >= something positive.
    */
export function solve(rows, p) {
  const nothing = { w: [0, 0], norm: Infinity, support: [], conflict: [] };
  const wanted = rows.filter((row) => row.b > 0);
  if (!wanted.length) return { ...nothing, status: "optimal", norm: 0 };
  let best = null;
  const consider = (w) => {
    const length = norm(w, p);
    if (!Number.isFinite(length)) return;
    if (best && length > best.norm * (1 + 1e-13)) return;
    const euclidean = size(w);
    if (best && length > best.norm * (1 - 1e-13) && euclidean >= size(best.w)) return;
    for (const { a, b } of rows) if (dot(a, w) - b < -1e-10 * (b + size(a) * euclidean)) return;
    best = { w, norm: length };
  };
  rows.forEach((row, k) => {
    if (row.b > 0 && size(row.a) > 0) consider(foot(row, p));
    if (p === Infinity && row.b > 0) {
      for (const corner of [
        [1, 1],
        [1, -1],
        [-1, 1],
        [-1, -1],
      ]) {
        const slope = dot(row.a, corner);
        if (slope > 0) consider(times(row.b / slope, corner));
      }
    }
    for (let j = 0; j < k; j++) {
      const other = rows[j];
      const area = cross(row.a, other.a);
      if (area !== 0 && (row.b > 0 || other.b > 0)) {
        consider([
          (row.b * other.a[1] - other.b * row.a[1]) / area,
          (other.b * row.a[0] - row.b * other.a[0]) / area,
        ]);
      }
    }
  });
  if (!best) return { ...nothing, status: "infeasible", conflict: conflict(rows) };
  const support = rows.flatMap(({ a, b }, k) =>
    b > 0 && dot(a, best.w) - b <= 1e-5 * b ? [k] : [],
  );
  return { ...nothing, ...best, status: "optimal", support };
}

/** Farkas: rows whose cone holds the origin although one of them asks for something positive. By
    Caratheodory's theorem three are enough; of all such sets one within the fewest sequences, and
    of those the one that misses by most. */
function conflict(rows) {
  const units = rows.map(({ a, b }) =>
    size(a) ? { u: times(1 / size(a), a), b: b / size(a) } : null,
  );
  const zero = rows.findIndex((row, k) => !units[k] && row.b > 0);
  if (zero >= 0) return [zero];
  let best = [],
    worst = 0,
    spread = Infinity;
  const weigh = (set, shares) => {
    if (shares.some((share) => share < 0)) return;
    const total = shares.reduce((sum, share) => sum + share, 0);
    const missed = set.reduce((sum, k, j) => sum + shares[j] * units[k].b, 0) / total;
    const across = new Set(set.map((k) => rows[k].i)).size;
    if (missed > 0 && (across < spread || (across === spread && missed > worst * (1 + 1e-9)))) {
      best = set;
      worst = missed;
      spread = across;
    }
  };
  for (let i = 0; i < rows.length; i++) {
    for (let j = 0; j < i; j++) {
      if (!units[i] || !units[j]) continue;
      const area = cross(units[i].u, units[j].u);
      if (Math.abs(area) < 1e-12 && dot(units[i].u, units[j].u) < 0) weigh([i, j], [1, 1]);
    }
  }
  if (best.length) return best;
  for (let i = 0; i < rows.length; i++) {
    for (let j = 0; j < i; j++) {
      for (let k = 0; k < j; k++) {
        if (!units[i] || !units[j] || !units[k]) continue;
        const [u, v, w] = [units[i].u, units[j].u, units[k].u];
        const shares = [cross(v, w), cross(w, u), cross(u, v)];
        const sign = shares.reduce((sum, share) => sum + share, 0) < 0 ? -1 : 1;
        weigh(
          [i, j, k],
          shares.map((share) => sign * share),
        );
      }
    }
  }
  return best;
}

/** The programme of a state. In joint mode the head has one of its own, and a sequence that is
    not a support vector of the head asks for a margin of zero only. { rows, head, ...solve(rows,
    p) }. */
export function marginOf(state, chosen) {
  if (state.mode !== "joint") {
    const rows = rowsOf(state, chosen);
    return { rows, head: null, ...solve(rows, state.p) };
  }
  const sides = state.sequences.map((q, i) => ({
    a: times(q.label, q.tokens[q.chosen[0]]),
    b: 1,
    i,
    s: q.chosen[0],
    t: q.chosen[0],
  }));
  const head = solve(sides, 2);
  if (head.status !== "optimal") return { ...head, rows: sides, head, blamed: "head" };
  const rows = rowsOf(
    state,
    chosen,
    sides.flatMap((_, i) => (head.support.includes(i) ? [] : [i])),
  );
  return { rows, head, ...solve(rows, state.p) };
}
