/* A state in an address, and from what a page hands over. In an address fields are parted by
   "~", sequences by "/" and tokens by ";". */

const digits = (x) => String(Number(x.toFixed(4)));

export function encode(state) {
  const sequences = state.sequences.map(({ label, weight, tokens, scores, chosen }) =>
    [
      digits(label),
      digits(weight),
      ...tokens.map(
        (token, t) => [...token, scores[t]].map(digits).join(",") + (chosen.includes(t) ? "*" : ""),
      ),
    ].join(";"),
  );
  const point = (a) => a.map(digits).join(",");
  return [
    state.p === Infinity ? "inf" : digits(state.p),
    state.mode,
    point(state.start),
    point(state.headStart),
    sequences.join("/"),
  ].join("~");
}

/** The state of an address; null when it is not one. */
export function decode(text) {
  const [p, mode, start, headStart, body, ...more] = text.split("~");
  if (!body || more.length || !["fixed", "joint", "shared"].includes(mode)) return null;
  const numbers = (list) => list.split(",").map(Number);
  const sequences = body.split("/").map((line) => {
    const [label, weight, ...tokens] = line.split(";");
    const values = tokens.map((token) => numbers(token.replace("*", "")));
    return {
      label: Number(label),
      weight: Number(weight),
      tokens: values.map(([x, y]) => [x, y]),
      scores: values.map(([, , score]) => score),
      chosen: tokens.flatMap((token, t) => (token.endsWith("*") ? [t] : [])),
    };
  });
  const state = {
    p: p === "inf" ? Infinity : Number(p),
    mode,
    start: numbers(start),
    headStart: numbers(headStart),
    sequences,
  };
  const pair = (a) => a.length === 2 && a.every(Number.isFinite);
  const sound =
    state.p >= 1.1 &&
    pair(state.start) &&
    pair(state.headStart) &&
    sequences.length <= 12 &&
    sequences.every(
      (q) =>
        q.chosen.length &&
        q.tokens.length > 1 &&
        q.tokens.length <= 12 &&
        Number.isFinite(q.label) &&
        Number.isFinite(q.weight) &&
        q.tokens.every(pair) &&
        q.scores.every(Number.isFinite),
    );
  return sound ? state : null;
}

/** A state from what a page or Python hands over: gaps filled in, nothing shared with the
    original. */
export function complete(given) {
  const sequences = given.sequences.map(
    ({ tokens, scores, chosen = [0], label = 1, weight = 1 }) => ({
      label,
      weight,
      tokens: tokens.map((token) => [...token]),
      chosen: [...chosen],
      scores: scores ? [...scores] : tokens.map((_, t) => (chosen.includes(t) ? 1 : 0)),
    }),
  );
  return {
    mode: given.mode ?? "fixed",
    sequences,
    p: given.p === "inf" ? Infinity : (given.p ?? 2),
    start: [...(given.start ?? [0, 0])],
    headStart: [...(given.headStart ?? [0, 0])],
  };
}
