// The board: what a folder of runs and studies holds, live while something runs.
"use strict";
import { clear, drawHead, getJson, h, keepFocus, load, start } from "./common.js";
import { addWords, getLanguage, has, t } from "./words.js";
import { sparkline } from "./chart.js";
import { countSteps, drawDetails } from "./details.js";

addWords({
  board_title: ["Runs and studies", "실행과 연구"],
  studies: ["Studies", "연구"],
  picks: ["Picked models", "고른 모형"],
  filter: ["Filter by name, system or task", "이름, 시스템, 과제로 찾기"],
  nothing: ["Nothing here yet.", "아직 아무것도 없습니다."],
  nothing_matches: ["Nothing matches.", "맞는 것이 없습니다."],
  no_result: ["No result yet.", "아직 결과가 없습니다."],
  more: ["There is more in this folder than is shown.", "이 폴더에는 더 많은 것이 있습니다."],
  running: ["running", "학습 중"],
  finished: ["finished", "끝남"],
  stopped: ["stopped", "멈춤"],
  damaged: ["damaged", "손상됨"],
  compare: ["Compare", "비교"],
  chosen_one: ["1 run chosen", "실행 1개 선택"],
  chosen_many: ["runs chosen", "개 실행 선택"],
  clear: ["Clear", "지우기"],
  report: ["Report", "보고서"],
  try_it: ["Try it", "써 보기"],
  loss: ["loss", "손실"],
  step: ["step", "스텝"],
  cell_done: ["1 cell done", "셀 1개 끝남"],
  cells_done: ["cells done", "개 셀 끝남"],
  holds: ["hold", "성립"],
  fails: ["fail", "기각"],
  "not settled": ["not settled", "판정 불가"],
  "not tested": ["not tested", "검정하지 못함"],
});

const byId = id => document.getElementById(id);
const state = {about: null, data: null, filter: "", chosen: [], shown: [], fingerprint: ""};
const REFRESH = 3000; // ms

const local = text => (typeof text === "string" ? text : text[getLanguage()] ?? text.en ?? Object.values(text)[0] ?? "");
const matches = (...texts) => texts.join(" ").toLowerCase().includes(state.filter.toLowerCase());

function ago(seconds) {
  const past = Math.max(0, Date.now() / 1000 - seconds), format = new Intl.RelativeTimeFormat(getLanguage(), {numeric: "auto", style: "short"});
  for (const [size, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) if (past >= size) return format.format(-Math.floor(past / size), unit);
  return format.format(-Math.floor(past), "second");
}

const nameTask = task => (has(`predict_${task}`) ? t(`predict_${task}`) : task);
const showState = name => h("span", {class: `state ${name}`}, h("i", {}), t(name));

// --- cards ---------------------------------------------------------------------------------------

function drawRun(run) {
  const score = Object.entries(run.valid).find(([name]) => name === "accuracy") ?? Object.entries(run.valid).find(([name]) => name !== "loss");
  const share = run.steps ? Math.min(1, run.step / run.steps) : 0;
  const toggle = h("input", {type: "checkbox", id: `compare ${run.path}`, "aria-label": `${t("compare")}: ${run.name}`, checked: state.chosen.includes(run.path), onchange: event => choose(run.path, event.target.checked)});
  return h("article", {class: "card entry"},
    h("div", {class: "line"}, h("button", {class: "name", type: "button", id: `run ${run.path}`, onclick: () => show([run.path])}, run.name), showState(run.state)),
    h("div", {class: "line"}, h("span", {}, [run.system, run.study].filter(Boolean).join(" · ")), run.task ? h("span", {class: "badge"}, nameTask(run.task)) : null),
    run.problem ? h("p", {class: "small"}, run.problem) : null,
    run.spark.length > 1 ? sparkline(run.spark) : null,
    run.state === "running" && share ? h("div", {class: "progress"}, h("i", {style: {width: `${100 * share}%`}})) : null,
    run.step ? h("div", {class: "line number"},
      h("span", {}, `${t("step")} ${countSteps(run)}`),
      h("span", {}, [run.loss === null ? null : `${t("loss")} ${run.loss.toFixed(3)}`, score ? `${score[0]} ${score[1].toFixed(3)}` : null].filter(Boolean).join(" · "))) : null,
    h("div", {class: "foot"},
      run.step ? h("label", {class: "compare above"}, toggle, t("compare")) : null,
      run.served ? h("a", {class: "above", href: `/#${encodeURIComponent(run.served)}`}, t("try_it")) : null,
      h("span", {class: "small"}, ago(run.updated))));
}

function drawStudy(study) {
  const best = Math.max(1e-9, ...study.rows.map(row => row.mean ?? 0));
  const verdicts = Object.entries(study.verdicts).map(([name, count]) => h("span", {class: `badge ${name}`}, getLanguage() === "ko" ? `${t(name)} ${count}` : `${count} ${t(name)}`));
  return h("article", {class: "card entry"},
    h("div", {class: "line"}, h("b", {class: "heading"}, local(study.title)), showState(study.state)),
    h("div", {class: "line"}, h("span", {}, [study.name, study.score].filter(Boolean).join(" · ")), h("span", {}, study.date)),
    study.problem ? h("p", {class: "small"}, study.problem) : null,
    study.rows.length || study.problem ? null : h("p", {class: "small"}, t("no_result")),
    verdicts.length ? h("div", {class: "verdicts"}, verdicts) : null,
    study.rows.length ? h("ul", {class: "bars"}, study.rows.slice(0, 4).map((row, at) => h("li", {}, h("div", {class: `bar${at ? "" : " best"}`},
      h("i", {style: {width: `${100 * Math.max(0, row.mean ?? 0) / best}%`}}), h("span", {title: local(row.name)}, local(row.name)), h("b", {}, row.mean === null ? "" : (100 * row.mean).toFixed(1)))))) : null,
    h("div", {class: "foot"},
      study.report ? h("a", {href: `/board/report?path=${encodeURIComponent(study.path)}`, target: "_blank", rel: "noopener", onclick: event => open(event, study)}, t("report")) : null,
      study.done ? h("span", {class: "number"}, study.done === 1 ? t("cell_done") : getLanguage() === "ko" ? `${study.done}${t("cells_done")}` : `${study.done} ${t("cells_done")}`) : null,
      h("span", {class: "small"}, ago(study.updated))));
}

// A link carries no token: where one is needed, the server gives a link that holds for a minute.
async function open(event, study) {
  if (!state.about.token) return;
  event.preventDefault();
  const tab = window.open("", "_blank");
  tab.location = (await getJson(`/board/link?path=${encodeURIComponent(study.path)}`)).url;
}

// --- the page ------------------------------------------------------------------------------------

function section(id, title, cards, all) {
  const part = clear(byId(id));
  if (!all.length && id !== "runs") return;
  part.append(h("h2", {class: "part"}, t(title)), cards.length ? h("div", {class: "grid"}, cards) : h("p", {class: "lead"}, t(all.length ? "nothing_matches" : "nothing")));
}

function draw() {
  drawHead("board", true);
  const {runs, studies, folder, cut} = state.data;
  const count = name => runs.filter(run => run.state === name).length;
  byId("title").textContent = t("board_title");
  byId("lead").textContent = [folder, ...["running", "finished", "stopped", "damaged"].filter(count).map(name => (getLanguage() === "ko" ? `${t(name)} ${count(name)}` : `${count(name)} ${t(name)}`)), cut ? t("more") : null].filter(Boolean).join(" · ");
  byId("filter").placeholder = t("filter");
  byId("filter").setAttribute("aria-label", t("filter"));
  section("runs", "runs", runs.filter(run => matches(run.name, run.path, run.system, run.task, nameTask(run.task), run.study)).map(drawRun), runs);
  for (const [id, kind] of [["studies", "study"], ["picks", "pick"]]) {
    const all = studies.filter(study => study.kind === kind);
    section(id, id, all.filter(study => matches(study.name, local(study.title), study.score)).map(drawStudy), all);
  }
  drawChosen();
}

function drawChosen() {
  const bar = clear(byId("chosen"));
  bar.hidden = !state.chosen.length || state.chosen.join("\n") === state.shown.join("\n"); // shown already
  if (bar.hidden) return;
  const count = state.chosen.length;
  bar.append(h("span", {}, count === 1 ? t("chosen_one") : getLanguage() === "ko" ? `${count}${t("chosen_many")}` : `${count} ${t("chosen_many")}`),
    h("button", {class: "primary", id: "compare", type: "button", disabled: count < 2, onclick: () => show(state.chosen)}, t("compare")),
    h("button", {class: "plain", type: "button", onclick: () => { state.chosen = []; draw(); }}, t("clear")));
}

function choose(path, is_chosen) {
  state.chosen = state.chosen.filter(each => each !== path);
  if (is_chosen) state.chosen = [...state.chosen, path].slice(-4); // as many as a chart can tell apart
  drawChosen();
}

async function show(paths, scroll = true) {
  if (!paths.length && state.shown.length) byId(`run ${state.shown[0]}`)?.focus(); // back to where it was opened
  state.shown = paths;
  const place = byId("details");
  place.hidden = !paths.length;
  drawChosen();
  if (!paths.length) return;
  try {
    const details = await Promise.all(paths.map(path => getJson(`/board/run?path=${encodeURIComponent(path)}`)));
    keepFocus(() => drawDetails(place, details, () => show([])));
  } catch (error) {
    clear(place).append(h("p", {class: "problem"}, error.message));
  }
  if (!scroll) return;
  place.focus({preventScroll: true});
  place.scrollIntoView({block: "start", behavior: "smooth"});
}

async function refresh() {
  if (document.hidden) return;
  const data = await getJson("/board/data");
  const fingerprint = JSON.stringify([data.runs, data.studies]);
  if (fingerprint === state.fingerprint) return;
  Object.assign(state, {data, fingerprint});
  keepFocus(draw);
  const live = new Set(data.runs.filter(run => run.state === "running").map(run => run.path));
  if (state.shown.some(path => live.has(path))) await show(state.shown, false);
}

start("board", () => { if (!state.data) { drawHead("board", true); return; } draw(); if (state.shown.length) show(state.shown, false); });
byId("details").addEventListener("keydown", event => { if (event.key === "Escape") show([]); });
byId("filter").addEventListener("input", event => { state.filter = event.target.value; draw(); });
state.about = await load(() => getJson("/about"));
await load(refresh);
setInterval(() => refresh().catch(() => { /* the server is away: the next look may find it */ }), REFRESH);
document.addEventListener("visibilitychange", () => refresh().catch(() => {}));
