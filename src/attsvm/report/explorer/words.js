/* What the explorer says: names of tokens, numbers, and the sentence under the pictures. */

import { size } from "./margin.js";

export const LETTERS = "ABCDEFGHIJKL";
export const nameOf = (i, t) => `${LETTERS[i]}${t + 1}`;
export const list = (names) =>
  names.length < 2
    ? names.join("")
    : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
export const short = (x) =>
  x === 0
    ? "0"
    : Math.abs(x) >= 1e4 || Math.abs(x) < 1e-3
      ? x
          .toExponential(0)
          .replace("e-", " · 10^−")
          .replace("e+", " · 10^")
          .replace(/\^(.*)/, (_, e) =>
            [...e].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"["0123456789−".indexOf(c)]).join(""),
          )
      : String(Number(x.toPrecision(3)));
export const degreesOf = (g) => (2 * Math.asin(Math.min(1, Math.sqrt(g / 2))) * 180) / Math.PI;
export const angle = (g) => `${degreesOf(g) < 0.01 ? "less than 0.01" : short(degreesOf(g))}°`;

/** The sentence under the pictures. */
export function words(state, { solved, local, path }) {
  const told = (rows) => list([...new Set(rows.map((row) => nameOf(row.i, row.t)))]);
  const last = path.gaps?.[path.gaps.length - 1];
  if (solved.blamed) {
    const names = solved.conflict.map((k) => LETTERS[solved.rows[k].i]);
    return `Impossible: no head separates the labels of ${list(names)}.`;
  }
  if (solved.status !== "optimal") {
    const rows = solved.conflict.map((k) => solved.rows[k]);
    const ask = [
      ...new Set(rows.map((row) => `${nameOf(row.i, row.s)} over ${nameOf(row.i, row.t)}`)),
    ];
    const why =
      rows.length === 1 && !size(rows[0].a)
        ? `${nameOf(rows[0].i, rows[0].s)} and ${told(rows)} are the same point`
        : rows.length
          ? `${list(ask)} contradict each other`
          : "the tokens leave no room";
    return `Impossible: ${why}. Move one of them, and a margin opens.`;
  }
  if (solved.norm === 0) return "There is nothing to choose: no sequence has a rival token.";
  const rows = solved.support.map((k) => solved.rows[k]);
  const names = new Set(rows.map((row) => nameOf(row.i, row.t)));
  const equal = solved.rows
    .filter((row) => row.equal)
    .map((row) => `${nameOf(row.i, row.s)} = ${nameOf(row.i, row.t)}`);
  const start = `Best margin ${short(1 / solved.norm)}. ${told(rows)} ${
    names.size > 1 ? "stand at the margin and decide" : "stands at the margin and decides"
  } the prompt${equal.length ? `, with the condition ${list([...new Set(equal)])}` : ""}.`;
  if (local) {
    const kept = list(local.strayed.map((i) => nameOf(i, local.picked[i])));
    const missed = list(local.strayed.map((i) => nameOf(i, state.sequences[i].chosen[0])));
    return `${start} Training from this start is caught: it selects ${kept} and never ${missed}${
      local.limit ? ` (dashed blue: where it ends, ${angle(last)} away)` : ""
    }.`;
  }
  if (path.strayed.length) return `${start} Training has not selected all chosen tokens yet.`;
  const steps = path.records[path.records.length - 1].step.toLocaleString("en");
  return `${start} After ${steps} steps training is ${angle(last)} away.`;
}
