// The page on which runs are tried: a run, one of its abilities, an input, the answer.
"use strict";
import { clear, drawHead, getJson, h, keepFocus, lines, load, post, start } from "./common.js";
import { has, t } from "./words.js";
import { showAnalogy, showFill, showNeighbours, showPaths, showPrediction, showSimilarity, showTranslation } from "./answers.js";
import { showAttention } from "./attention.js";
import { generate } from "./generate.js";

const byId = id => document.getElementById(id);
const number = (name, value, low, high, step = 1) => ({name, value, low, high, step});
const state = {about: null, run: null, ability: null, inputs: {}, seed: 0, cancel: null};

// --- what each ability asks for ------------------------------------------------------------------

const ABILITIES = {
  fill: {
    fields: () => [["input", "text", 3, t("fill_text")]],
    options: [number("top", 5, 1, 100)],
    body: values => ({input: lines(values.input)}),
    show: (answer, values) => showFill(answer, lines(values.input)),
  },
  generate: {
    fields: () => [["input", "text", 4, t("generate_text")]],
    optional: ["input"], // a text may begin with nothing
    options: [number("tokens", 60, 1, 1024), number("temperature", 1, 0, 5, 0.1), number("top_k", "", 1, 100000), number("top_p", "", 0.05, 1, 0.05), number("seed", "", 0, 1e9)],
    body: values => ({input: values.input}),
  },
  translate: {
    fields: () => [["input", "source", 3, t("translate_text")]],
    options: [number("beams", 4, 1, 16), number("best", 3, 1, 16), number("temperature", "", 0, 5, 0.1), number("top_k", "", 1, 100000), number("top_p", "", 0.05, 1, 0.05), number("seed", "", 0, 1e9)],
    body: values => ({input: lines(values.input), ...translateBest(values)}),
    show: (answer, values) => showTranslation(answer, lines(values.input), state.run.endpoints.includes("attention") ? align : null),
  },
  attention: {
    wide: true,
    optional: ["second"],
    fields: () => [["input", "text", 2, t("attention_text")], ["second", "second", 1, ""]],
    body: values => ({input: values.input.trim(), second: values.second.trim() || null}),
    show: answer => showAttention(answer),
  },
  similarity: {
    fields: () => [["input", "texts", 4, t("similarity_text")]],
    options: [{name: "pool", value: "mean", choices: ["mean", "max", "first", "last"]}],
    body: values => ({input: lines(values.input)}),
    show: (answer, values) => showSimilarity(answer, lines(values.input)),
  },
  neighbours: {
    fields: () => [["input", "word", 1, state.run.examples.neighbours]],
    options: [number("top", 10, 1, 100)],
    body: values => ({input: lines(values.input)}),
    show: (answer, values) => showNeighbours(answer, lines(values.input)),
  },
  analogy: {
    fields: () => ["a", "b", "c"].map((name, at) => [name, name, 1, state.run.examples.analogy[at]]),
    options: [number("top", 5, 1, 100)],
    body: values => ({input: [values.a.trim(), values.b.trim(), values.c.trim()]}),
    show: (answer, values) => showAnalogy(answer, values),
  },
  paths: {
    fields: () => [["question", "question", 2, ""], ["choices", "choices", 4, ""]],
    body: values => ({input: {question: values.question.trim(), choices: lines(values.choices)}}),
    show: answer => showPaths(answer),
  },
  predict: {
    lead: () => t(has(`predict_${state.run.task}_lead`) ? `predict_${state.run.task}_lead` : !state.run.inputs.length && !listRole() ? "predict_json_lead" : state.run.inputs.length === 1 ? "predict_lead" : "predict_parts_lead"),
    fields: predictFields,
    body: values => ({input: predictInputs(values)}),
    show: (answer, values) => showPrediction(answer, predictInputs(values), state.run),
  },
};
const ORDER = ["predict", "fill", "generate", "translate", "attention", "paths", "similarity", "neighbours", "analogy"];

// A search has no more translations than beams; a draw has as many as one likes.
function translateBest({best, beams, temperature, top_k, top_p}) {
  const is_drawn = [temperature, top_k, top_p].some(value => value !== "");
  return {best: Math.max(1, is_drawn ? Number(best) : Math.min(Number(best), Number(beams) || 4))};
}

// Tasks whose input has a list: what is asked, and the list.
const LISTS = {choice: ["question", "choices"], graph_choice: ["question", "choices"], rank: ["query", "candidates"]};
const listRole = () => (LISTS[state.run.task] && LISTS[state.run.task].every(role => role in state.run.roles) ? LISTS[state.run.task] : null);

function predictFields() {
  const list = listRole();
  if (list) return [[list[0], list[0], 2, ""], [list[1], list[1], 4, ""]];
  const {inputs} = state.run;
  if (inputs.length > 1) return inputs.map(role => [role, role === "second" ? "second_text" : role, role === "context" ? 7 : 2, ""]);
  if (!inputs.length) return [["input", "input", 4, JSON.stringify(state.run.examples.predict)]];
  return [["input", inputs[0] === "tokens" ? "tokens_field" : "texts", 4, ""]];
}

function parse(line, at) {
  try { return JSON.parse(line); } catch { throw new Error(t("bad_json").replace("{}", at + 1)); }
}

function predictInputs(values) {
  const list = listRole();
  if (list) return [{[state.run.roles[list[0]]]: values[list[0]].trim(), [state.run.roles[list[1]]]: lines(values[list[1]])}];
  const {inputs, columns} = state.run;
  if (inputs.length > 1) return [Object.fromEntries(inputs.map((role, at) => [columns[at], values[role].trim()]))];
  return lines(values.input).map((line, at) => (line.startsWith("{") ? parse(line, at) : line));
}

const title = (ability, run = state.run) => (ability === "predict" && has(`predict_${run.task}`) ? t(`predict_${run.task}`) : t(ability));
const describe = run => [run.system, run.task && title("predict", run)].filter(Boolean).join(" · ");

// --- drawing -------------------------------------------------------------------------------------

function draw() {
  drawHead("try", state.about.board);
  const {runs} = state.about;
  if (!runs.length) {
    byId("title").textContent = t("no_runs");
    byId("lead").textContent = t("no_runs_lead");
    return;
  }
  document.title = `${state.run.name} – Etude`;
  byId("title").textContent = state.run.name;
  byId("lead").textContent = [describe(state.run), state.run.pairs.join(" → ")].filter(Boolean).join(" · ");
  byId("runs").setAttribute("aria-label", t("runs"));
  byId("tabs").setAttribute("aria-label", t("abilities"));
  clear(byId("runs")).append(...(runs.length < 2 ? [] : runs.map(run =>
    h("button", {class: "pill", type: "button", id: `run ${run.name}`, "aria-pressed": String(run === state.run), onclick: () => keepFocus(() => choose(run))}, run.name, h("small", {}, describe(run))))));
  const pill = byId("runs").querySelector("[aria-pressed=true]");
  if (pill) byId("runs").scrollLeft = pill.offsetLeft - (byId("runs").clientWidth - pill.offsetWidth) / 2; // scrollIntoView would take the keyboard along
  const abilities = ORDER.filter(name => state.run.endpoints.includes(name));
  clear(byId("tabs")).append(...abilities.map(name => h("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === state.ability), "aria-controls": "panel",
    tabIndex: name === state.ability ? 0 : -1, onclick: () => turn(name), onkeydown: event => step(event, abilities)}, title(name))));
  byId("panel").setAttribute("aria-labelledby", `tab-${state.ability}`);
  drawPanel();
}

function drawPanel() {
  const kind = ABILITIES[state.ability];
  const kept = state.inputs[`${state.run.name} ${state.ability}`] ||= {};
  const controls = {};
  const remember = name => () => { kept[name] = controls[name].value; };
  const fields = kind.fields().map(([name, label, rows, example]) => {
    controls[name] = h("textarea", {id: `field-${name}`, rows, style: {minHeight: `calc(${1.55 * rows}em + 1.3rem)`}, "data-line": rows === 1 ? "" : null, value: kept[name] ?? example, spellcheck: false, oninput: remember(name)});
    return h("label", {class: "field"}, h("span", {}, t(label)), controls[name]);
  });
  const options = (kind.options || []).map(option => {
    const value = kept[option.name] ?? option.value;
    controls[option.name] = option.choices
      ? h("select", {onchange: remember(option.name)}, option.choices.map(choice => h("option", {value: choice, selected: choice === value}, choice)))
      : h("input", {type: "number", value, min: option.low, max: option.high, step: option.step, placeholder: "–", oninput: remember(option.name)});
    return h("label", {class: "field"}, h("span", {}, t(option.name)), controls[option.name]);
  });
  const answer = h("div", {class: "card answer", id: "answer", "aria-live": "polite", "data-empty": t("empty")});
  const button = h("button", {class: "primary", id: "ask"}, t("ask"));
  const stop = h("button", {class: "plain", type: "button", hidden: true, onclick: () => state.cancel?.abort()}, t("stop"));
  const form = h("form", {class: "card", onsubmit: event => { event.preventDefault(); ask(kind, controls, answer, button, stop); }},
    h("p", {class: "lead"}, kind.lead ? kind.lead() : t(`${state.ability}_lead`)), h("div", {class: "fields"}, fields),
    options.length ? h("details", {}, h("summary", {}, t("options")), h("div", {class: "options"}, options)) : null,
    h("div", {class: "actions"}, button, stop, h("kbd", {}, kind.fields().every(([, , rows]) => rows === 1) ? "↵" : "Ctrl ↵")));
  form.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.isComposing) return; // Hangul is still being written
    const is_line = "line" in event.target.dataset && !event.shiftKey; // where one word is asked for, Enter asks
    if (event.ctrlKey || event.metaKey || is_line) { event.preventDefault(); if (!button.disabled) form.requestSubmit(); }
  });
  const panel = clear(byId("panel"));
  panel.className = kind.wide ? "panel wide" : "panel";
  panel.append(form, answer);
}

function choose(run, ability) {
  state.cancel?.abort();
  state.run = run;
  const abilities = ORDER.filter(name => run.endpoints.includes(name));
  state.ability = abilities.includes(ability ?? state.ability) ? ability ?? state.ability : abilities[0];
  draw();
}

function turn(ability, focus = false) {
  state.cancel?.abort();
  state.ability = ability;
  draw();
  if (focus) byId(`tab-${ability}`).focus();
}

function step(event, abilities) {
  const at = abilities.indexOf(state.ability);
  const next = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: abilities.length - 1}[event.key];
  if (next === undefined) return;
  event.preventDefault();
  turn(abilities[(next + abilities.length) % abilities.length], true);
}

function align(source, target) {
  state.inputs[`${state.run.name} attention`] = {input: source, second: target};
  turn("attention");
  byId("ask").click();
}

// --- asking --------------------------------------------------------------------------------------

async function ask(kind, controls, answer, button, stop) {
  const values = Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, control.value]));
  const body = {run: state.run.name};
  for (const option of kind.options || [])
    if (values[option.name] !== "") body[option.name] = option.choices ? values[option.name] : Number(values[option.name]);
  const blank = kind.fields().find(([name]) => !values[name].trim() && !(kind.optional || []).includes(name));
  for (const [name] of kind.fields()) controls[name].setAttribute("aria-invalid", String(blank?.[0] === name));
  if (blank) {
    clear(answer).append(h("p", {class: "problem", role: "alert"}, t("missing").replace("{}", t(blank[1]))));
    controls[blank[0]].focus();
    return;
  }
  const cancel = state.cancel = new AbortController();
  button.disabled = true;
  answer.setAttribute("aria-busy", "true"); // read aloud when it is whole, not piece by piece
  stop.hidden = state.ability !== "generate";
  const late = setTimeout(() => { if (!answer.childElementCount) answer.append(h("p", {class: "small"}, t("waiting"))); }, 400);
  clear(answer);
  try {
    Object.assign(body, kind.body(values));
    if (state.ability === "generate") {
      body.seed ??= state.seed++;
      await generate(answer, body, cancel.signal);
    } else {
      const response = await (await post(`/${state.ability}`, body, cancel.signal)).json();
      clear(answer).append(...[kind.show(response.results, values)].flat());
    }
  } catch (error) {
    if (error.name !== "AbortError") clear(answer).append(h("p", {class: "problem", role: "alert"}, error.message));
  } finally {
    clearTimeout(late);
    answer.setAttribute("aria-busy", "false");
    button.disabled = false;
    stop.hidden = true;
    if (document.activeElement === document.body) button.focus({preventScroll: true}); // a disabled button loses it
  }
}

start("try", () => (state.about ? draw() : drawHead("try", false)));
state.about = await load(() => getJson("/about"));
if (state.about.runs.length) {
  const [name, ability] = decodeURIComponent(location.hash.slice(1)).split("/");
  choose(state.about.runs.find(run => run.name === name) || state.about.runs[0], ability);
} else draw();
