/* What the drawing is made of: elements, lines and arrows. */

import { dot, minus, size, times } from "./margin.js";

export const HALF = 200,
  DISC = 128,
  RIM = 190; // of the pictures, in their own units
export const exponentOf = (slider) => (slider <= 0 ? Infinity : 1 / slider);

export function make(name, attributes = {}, ...children) {
  const svg = /^(svg|g|path|circle|text|line|clipPath)$/.test(name);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export const set = (node, attributes) => {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
};
export const f = (x) => x.toFixed(2);
export const line = (points) =>
  points.length ? `M${points.map((a) => `${f(a[0])} ${f(a[1])}`).join("L")}` : "";
export const show = (node, visible) => {
  node.style.display = visible ? "" : "none";
};

export function arrow(from, to) {
  const d = minus(to, from),
    length = size(d);
  if (length < 1) return "";
  const u = times(1 / length, d),
    back = minus(to, times(11, u)),
    side = [-u[1] * 4.5, u[0] * 4.5];
  return `${line([from, back])}M${line([
    to,
    [back[0] + side[0], back[1] + side[1]],
    minus(back, side),
  ]).slice(1)}Z`;
}

/** The part of a convex polygon where <a, w> >= b. */
export function clipped(polygon, { a, b }) {
  const kept = [];
  polygon.forEach((point, k) => {
    const before = polygon[(k + polygon.length - 1) % polygon.length];
    const [here, there] = [dot(a, point) - b, dot(a, before) - b];
    if (here >= 0 !== there >= 0) {
      const c = there / (there - here);
      kept.push([before[0] + c * (point[0] - before[0]), before[1] + c * (point[1] - before[1])]);
    }
    if (here >= 0) kept.push(point);
  });
  return kept;
}

export const round = (radius) =>
  Array.from({ length: 96 }, (_, k) =>
    times(radius, [Math.cos((k * Math.PI) / 48), Math.sin((k * Math.PI) / 48)]),
  );
