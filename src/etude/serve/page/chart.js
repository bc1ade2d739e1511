// Lines over an axis, as SVG; and small ones for cards.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const path = points => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

export function sparkline(values) {
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const points = values.map((value, at) => [2 + 196 * at / Math.max(1, values.length - 1), 4 + 40 * (1 - (value - low) / span)]);
  const chart = draw("svg", {viewBox: "0 0 200 48", preserveAspectRatio: "none", "aria-hidden": "true"});
  if (points.length > 1) chart.append(draw("path", {class: "curve k0", d: path(points), "vector-effect": "non-scaling-stroke"}));
  return chart;
}

// About `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(each => each * power).find(each => each >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) values.push(value);
  return values;
}

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(1).replace("e+", "e");
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= unit) return `${Number((value / unit).toPrecision(3))}${name}`;
  return String(Number(value.toPrecision(3)));
}

// series: {name, kind: 0..3, dashed, points: [[x, y], ...]}; `point` is told the nearest points of all series.
export function plot(series, point, name) {
  const width = Math.max(340, Math.min(900, document.querySelector("main").clientWidth - 60)), height = Math.round(Math.max(220, width * .38)), left = 52, right = 14, above = 26, below = 30;
  const all = series.flatMap(each => each.points);
  const xs = all.map(each => each[0]), ys = all.map(each => each[1]).sort((a, b) => a - b);
  const lowX = Math.min(0, ...xs), highX = Math.max(...xs, 1);
  // a few wild values at the start must not flatten the rest
  const lowY = ys[0], highY = ys[Math.min(ys.length - 1, Math.floor(ys.length * .995))] || lowY + 1, pad = (highY - lowY || 1) * .06;
  const x = value => left + (width - left - right) * (value - lowX) / (highX - lowX || 1);
  const y = value => height - below - (height - above - below) * (Math.min(value, highY + pad) - lowY + pad) / (highY - lowY + 2 * pad || 1);
  const chart = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}: ${[...new Set(series.map(each => each.name))].join(", ")}`});
  chart.append(draw("text", {x: left - 8, y: 11, "text-anchor": "end"}, name));
  for (const value of ticks(lowY, highY, 5)) {
    chart.append(draw("line", {class: "grid-line", x1: left, x2: width - right, y1: y(value), y2: y(value)}));
    chart.append(draw("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, short(value)));
  }
  for (const value of ticks(lowX, highX, 7)) chart.append(draw("text", {x: x(value), y: height - 8, "text-anchor": "middle"}, short(value)));
  for (const each of series) chart.append(draw("path", {class: `curve k${each.kind}${each.dashed ? " valid" : ""}`, d: path(each.points.map(([a, b]) => [x(a), y(b)]))}));
  for (const each of series) { // a single value is a point
    if (each.points.length === 1) chart.append(draw("circle", {class: `dot k${each.kind}`, cx: x(each.points[0][0]), cy: y(each.points[0][1]), r: 3.5}));
  }
  const cross = draw("line", {class: "cross", y1: above, y2: height - below, visibility: "hidden"});
  const dots = series.map(each => draw("circle", {class: `dot k${each.kind}`, r: 3.5, visibility: "hidden"}));
  chart.append(cross, ...dots);
  chart.addEventListener("pointermove", event => {
    const box = chart.getBoundingClientRect(), place = lowX + (highX - lowX) * ((event.clientX - box.left) / box.width * width - left) / (width - left - right);
    const nearest = series.map(each => each.points.reduce((best, one) => (Math.abs(one[0] - place) < Math.abs(best[0] - place) ? one : best), each.points[0]));
    cross.setAttribute("x1", x(place));
    cross.setAttribute("x2", x(place));
    cross.setAttribute("visibility", "visible");
    nearest.forEach((one, at) => { dots[at].setAttribute("cx", x(one[0])); dots[at].setAttribute("cy", y(one[1])); dots[at].setAttribute("visibility", "visible"); });
    point(nearest);
  });
  chart.addEventListener("pointerleave", () => {
    for (const each of [cross, ...dots]) each.setAttribute("visibility", "hidden");
    point(null);
  });
  return chart;
}
