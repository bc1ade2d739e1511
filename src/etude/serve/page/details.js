// One run, or several beside each other: curves, scores, settings that differ, the card.
"use strict";
import { clear, h, keepFocus } from "./common.js";
import { plot, short } from "./chart.js";
import { showMarkdown } from "./markdown.js";
import { addWords, t } from "./words.js";

addWords({
  close: ["Close", "닫기"],
  axis: ["Horizontal axis", "가로축"],
  axis_step: ["Steps", "스텝"],
  axis_tokens: ["Tokens", "토큰"],
  axis_flops: ["FLOPs", "FLOPs"],
  axis_seconds: ["Seconds", "초"],
  no_curve: ["This run has no curve.", "이 실행에는 곡선이 없습니다."],
  train_valid: ["Solid: training. Dashed: held-out text.", "실선: 학습. 점선: 따로 둔 글."],
  train_point: ["Line: training. Dot: held-out text.", "선: 학습. 점: 따로 둔 글."],
  losses_differ: ["These losses do not compare: the tokenizers or the objectives differ.", "토크나이저나 목적 함수가 달라 손실을 서로 견줄 수 없습니다."],
  scores: ["Last values on held-out text", "따로 둔 글에서의 마지막 값"],
  differences: ["Settings that differ", "다른 설정"],
  same_settings: ["All settings are the same.", "모든 설정이 같습니다."],
  cost: ["Cost", "비용"],
  settings: ["Settings", "설정"],
  model_card: ["Model card", "모형 카드"],
  versus: ["against", "대"],
});

const AXES = ["step", "tokens", "flops", "seconds"];
const PROSE = new Set(["paper", "follows", "note", "model.graph"]); // long texts: the cards have them
let axis = "step";

const pairs = (columns, name) => (columns[axis] || []).map((x, at) => [x, (columns[name] || [])[at]]).filter(([x, y]) => x !== null && y !== null && y !== undefined);

// "310 / 460"; of a run that has come to its end, one number
export const countSteps = run => run.step.toLocaleString() + (run.steps && run.steps !== run.step ? ` / ${run.steps.toLocaleString()}` : "");

export function drawDetails(place, details, close) {
  const names = details.map(each => each.run.name);
  const redraw = () => keepFocus(() => drawDetails(place, details, close));
  const opened = new Set([...place.querySelectorAll("details[open] > summary")].map(each => each.textContent)); // stay open while a run is live
  clear(place).append(h("div", {class: "card"},
    h("div", {class: "head"}, h("h2", {}, names.join(` ${t("versus")} `)),
      details.filter(each => each.run.state === "running").map(each => h("span", {class: "state running number"}, h("i", {}), `${details.length > 1 ? `${each.run.name}: ` : ""}${t("running")} · ${t("step")} ${countSteps(each.run)}`)),
      h("div", {class: "axes", role: "group", "aria-label": t("axis")}, AXES.map(name => h("button", {type: "button", id: `axis ${name}`, "aria-pressed": String(name === axis), onclick: () => { axis = name; redraw(); }}, t(`axis_${name}`)))),
      h("button", {class: "plain", type: "button", id: "close", onclick: close}, t("close"))),
    drawCurves(details), h("div", {class: "pair"}, drawScores(details), drawCost(details)),
    details.length > 1 ? drawDifferences(details) : drawSettings(details[0]),
    details.filter(each => each.card).map(each => h("details", {}, h("summary", {}, details.length > 1 ? `${t("model_card")}: ${each.run.name}` : t("model_card")), h("div", {class: "text"}, showMarkdown(each.card))))));
  for (const summary of place.querySelectorAll("details > summary")) summary.parentElement.open = opened.has(summary.textContent);
}

function drawCurves(details) {
  const series = details.flatMap((each, kind) => [
    {name: each.run.name, kind, dashed: false, points: pairs(each.train, "loss")},
    {name: each.run.name, kind, dashed: true, points: pairs(each.valid, "loss")},
  ]).filter(each => each.points.length > 1 || (each.points.length && each.dashed));
  if (!series.some(each => each.points.length > 1)) return h("p", {class: "lead"}, t("no_curve"));
  const legend = h("div", {class: "legend number"});
  const entry = (each, value) => h("span", {}, h("i", {class: `swatch k${each.kind}`}), value === undefined ? each.name : `${each.name}${each.dashed ? " – –" : ""} ${value}`);
  const valid = series.filter(each => each.dashed);
  const held = !valid.length ? "" : t(valid.some(each => each.points.length > 1) ? "train_valid" : "train_point");
  const describe = nearest => {
    clear(legend);
    if (!nearest) legend.append(...series.filter(each => !each.dashed).map(each => entry(each)), h("span", {class: "small"}, held));
    else legend.append(h("span", {}, `${t(`axis_${axis}`)} ${short(nearest[0][0])}`), ...series.map((each, at) => entry(each, nearest[at][1].toFixed(4))));
  };
  describe(null);
  const differ = ["tokenizer", "objective.kind", "task"].some(name => new Set(details.map(each => (name === "task" ? each.run.task : each.settings[name]))).size > 1);
  return h("div", {class: "plot"}, plot(series, describe, t("loss")), legend, differ ? h("p", {class: "small"}, t("losses_differ")) : null);
}

function table(head, rows) {
  return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, head.map((name, at) => (at ? h("th", {class: "number"}, name) : h("td", {}, name))))), h("tbody", {}, rows)));
}

function drawScores(details) {
  const names = [...new Set(details.flatMap(each => Object.keys(each.run.valid)))];
  if (!names.length) return null;
  const rows = names.map(name => h("tr", {}, h("td", {}, name.replaceAll("_", " ")), details.map(each => h("td", {class: "number"}, each.run.valid[name]?.toFixed(4) ?? "–"))));
  return h("div", {}, h("h3", {}, t("scores")), table(["", ...details.map(each => each.run.name)], rows));
}

function drawCost(details) {
  const rows = AXES.map(name => h("tr", {}, h("td", {}, t(`axis_${name}`)), details.map(each => h("td", {class: "number"}, short(each.run[name])))));
  return h("div", {}, h("h3", {}, t("cost")), table(["", ...details.map(each => each.run.name)], rows));
}

function drawDifferences(details) {
  const names = [...new Set(details.flatMap(each => Object.keys(each.settings)))];
  const different = names.filter(name => !PROSE.has(name) && new Set(details.map(each => each.settings[name])).size > 1);
  const rows = different.map(name => h("tr", {}, h("td", {}, h("code", {}, name)), details.map(each => h("td", {class: "number"}, h("code", {}, each.settings[name] ?? "–")))));
  return h("div", {id: "differences"}, h("h3", {}, t("differences")), rows.length ? table(["", ...details.map(each => each.run.name)], rows) : h("p", {class: "lead"}, t("same_settings")));
}

function drawSettings(details) {
  const rows = Object.entries(details.settings).map(([name, value]) => h("tr", {}, h("td", {}, h("code", {}, name)), h("td", {}, h("code", {}, value))));
  return rows.length ? h("details", {}, h("summary", {}, t("settings")), h("div", {class: "scroll"}, h("table", {}, h("tbody", {}, rows)))) : null;
}
