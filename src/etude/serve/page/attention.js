// Attention maps: all heads small, one large, and what a chosen token looks at.
"use strict";
import { clear, colour, h, keepFocus, percent } from "./common.js";
import { t } from "./words.js";

export function showAttention([result]) {
  const {tokens, keys, weights, habits} = result;
  const heads = weights[0].length;
  const sharpest = findSharpest(habits.entropy);
  const state = {layer: sharpest[0], head: sharpest[1], token: Math.min(1, tokens.length - 1)};
  const thumbs = h("div", {class: "heads", style: {gridTemplateColumns: `auto repeat(${heads}, minmax(1.15rem, 3.2rem))`}});
  const name = h("h2", {}), map = h("div", {class: "map"}), chips = h("div", {class: "chips"}), looks = h("div", {class: "chips"});
  const title = h("h2", {class: "minor"});
  const buttons = [];

  const redraw = () => {
    const layer = weights[state.layer][state.head];
    name.textContent = `${t("layer")} ${state.layer}, ${t("head").toLowerCase()} ${state.head}`;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === state.layer * heads + state.head)));
    clear(map).append(drawMap(layer, tokens, keys, state.token, row => { state.token = row; redraw(); }));
    clear(chips).append(...tokens.map((token, row) => h("button", {class: "chip", type: "button", id: `token ${row}`, "aria-pressed": String(row === state.token), onclick: () => { state.token = row; keepFocus(redraw); }}, token)));
    title.textContent = t("looks_at").replace("{}", tokens[state.token]);
    const row = layer[state.token], most = Math.max(...row);
    clear(looks).append(...keys.map((key, at) => h("span", {class: "chip key", title: percent(row[at]), style: shade(row[at] / most)}, key)));
  };

  weights.forEach((layer, number) => {
    thumbs.append(h("span", {class: "layer"}, String(number)));
    layer.forEach((matrix, head) => {
      const button = h("button", {type: "button", "aria-label": `${t("layer")} ${number}, ${t("head")} ${head}`, onclick: () => { Object.assign(state, {layer: number, head}); redraw(); }}, drawThumb(matrix));
      buttons.push(button);
      thumbs.append(button);
    });
  });
  redraw();
  return [
    h("div", {class: "maps"},
      h("div", {}, h("h2", {class: "minor", style: {marginTop: "0"}}, `${t("layer")} × ${t("head").toLowerCase()}`), thumbs, h("h2", {class: "minor"}, t("text")), chips, title, looks),
      h("div", {}, name, map)),
    result.cut ? h("p", {class: "small"}, t("cut")) : null,
  ].filter(Boolean);
}

// The head of the lowest entropy has the most to show.
function findSharpest(entropy) {
  let best = [0, 0];
  entropy.forEach((row, layer) => row.forEach((value, head) => { if (value < entropy[best[0]][best[1]]) best = [layer, head]; }));
  return best;
}

const mix = share => {
  const low = colour("--low").split(",").map(Number), high = colour("--high").split(",").map(Number);
  return low.map((value, at) => Math.round(value + (high[at] - value) * share));
};

function shade(share) {
  const [red, green, blue] = mix(Math.sqrt(share) * 0.85);
  const dark = 0.299 * red + 0.587 * green + 0.114 * blue < 140;
  return {background: `rgb(${red}, ${green}, ${blue})`, color: dark ? "#f4f2ee" : "#1d1f24", borderColor: "transparent"};
}

function drawThumb(matrix) {
  const canvas = h("canvas", {width: matrix[0].length, height: matrix.length});
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const palette = Array.from({length: 65}, (_, at) => mix(Math.sqrt(at / 64)));
  matrix.forEach((row, y) => row.forEach((value, x) => {
    const [red, green, blue] = palette[Math.round(64 * Math.min(1, value))];
    image.data.set([red, green, blue, 255], 4 * (y * canvas.width + x));
  }));
  context.putImageData(image, 0, 0);
  return canvas;
}

// A map with names: rows look at columns; the chosen row is framed.
function drawMap(matrix, rows, columns, chosen, choose) {
  const room = Math.min(640, document.querySelector("#answer").clientWidth - 150); // beside the longest names
  const cell = Math.max(11, Math.min(30, Math.floor(room / Math.max(rows.length, columns.length)))), size = Math.min(13, cell);
  const scale = window.devicePixelRatio || 1;
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  const font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.font = font;
  const longest = names => Math.min(130, Math.max(...names.map(name => context.measureText(name).width)));
  const left = Math.ceil(longest(rows)) + 10, above = Math.ceil(longest(columns)) + 10;
  const width = left + cell * columns.length + 2, height = above + cell * rows.length + 2;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.scale(scale, scale);
  context.font = font;
  context.textBaseline = "middle";
  rows.forEach((row, y) => {
    context.fillStyle = colour(y === chosen ? "--ink" : "--soft");
    context.textAlign = "right";
    context.fillText(row, left - 7, above + cell * (y + .5), left - 8);
    matrix[y].forEach((value, x) => {
      const [red, green, blue] = mix(Math.sqrt(value));
      context.fillStyle = `rgb(${red}, ${green}, ${blue})`;
      context.fillRect(left + cell * x, above + cell * y, cell - 1, cell - 1);
    });
  });
  context.textAlign = "left";
  context.fillStyle = colour("--soft");
  columns.forEach((column, x) => {
    context.save();
    context.translate(left + cell * (x + .5), above - 7);
    context.rotate(-Math.PI / 2);
    context.fillText(column, 0, 0, above - 8);
    context.restore();
  });
  context.strokeStyle = colour("--accent");
  context.lineWidth = 1.5;
  context.strokeRect(left - 1, above + cell * chosen - 1, cell * columns.length + 1, cell + 1);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", t("map_of"));
  canvas.addEventListener("click", event => {
    const row = Math.floor((event.offsetY - above) / cell);
    if (row >= 0 && row < rows.length) choose(row);
  });
  return canvas;
}
