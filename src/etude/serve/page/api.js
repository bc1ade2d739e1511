// The documentation of the API, drawn from /openapi.json; nothing is loaded from elsewhere.
"use strict";
import { clear, drawHead, getJson, h, load, start } from "./common.js";
import { addWords, getLanguage, t } from "./words.js";

addWords({
  api_title: ["The API", "API"],
  api_lead: ["Inputs are called input everywhere: a string, or a list. Answers have results, one an input. Errors are problem details (RFC 9457).",
    "입력의 이름은 어디서나 input이며, 문자열 하나이거나 목록입니다. 답은 results에 입력마다 하나씩 있습니다. 오류는 problem details(RFC 9457)입니다."],
  api_field: ["Field", "항목"],
  api_type: ["Type", "자료형"],
  api_default: ["Default", "기본값"],
  api_meaning: ["Meaning", "뜻"],
  api_answers: ["Answers", "응답"],
  api_required: ["required", "필수"],
});

// The summaries of the description are English.
const KOREAN = {
  "fill": "글의 [MASK]마다 그럴듯한 토큰",
  "generate": "글 이어 쓰기. stream이면 조각마다",
  "predict": "과제의 답: 레이블, 태그, 답, 순위",
  "translate": "글 번역",
  "attention": "글을 보는 모든 헤드의 어텐션",
  "paths": "질문과 보기를 잇는 그래프의 경로",
  "encode": "글마다 벡터 하나",
  "similarity": "기준 글, 또는 첫 글과의 코사인",
  "neighbours": "한 낱말에 가까운 낱말들",
  "analogy": "a와 b의 관계를 c에 옮긴 낱말들",
  "about": "실행들과 저마다 할 수 있는 것",
  "health": "요청에 답하고 있는지",
  "metrics": "Prometheus를 위한 수치",
  "board/data": "폴더의 모든 실행과 연구",
  "board/run": "실행 하나: 곡선, 설정, 카드",
  "board/link": "토큰 없이 1분 동안 보고서를 여는 주소",
  "board/report": "연구나 고르기의 보고서",
};
const state = {about: null, schema: null};

function resolve(value) {
  return value.$ref ? state.schema.components.schemas[value.$ref.split("/").pop()] : value;
}

function typeName(value) {
  const full = resolve(value);
  if (full.anyOf) return full.anyOf.map(typeName).filter(name => name !== "null").join(" | ");
  if (full.enum) return full.enum.join(" | ");
  if (full.type === "array") return `[${typeName(full.items)}]`;
  return full.title && full.type === "object" && full.properties ? `{${Object.keys(full.properties).join(", ")}}` : full.type || "JSON";
}

function drawFields(model) {
  const rows = Object.entries(model.properties || {}).map(([name, field]) => h("tr", {},
    h("td", {}, h("code", {}, name)), h("td", {}, h("code", {}, typeName(field))),
    h("td", {}, h("code", {}, (model.required || []).includes(name) ? t("api_required") : JSON.stringify(field.default ?? null))),
    h("td", {}, field.description || "")));
  return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, ["api_field", "api_type", "api_default", "api_meaning"].map(key => h("th", {}, t(key))))), h("tbody", {}, rows)));
}

function drawRoute(path, method, route) {
  const name = path.slice(1);
  const body = route.requestBody && resolve(route.requestBody.content["application/json"].schema);
  const able = state.about.runs.filter(run => run.endpoints.includes(name));
  const example = {...(able.length > 1 ? {run: able[0].name} : {}), input: able[0]?.examples[name]};
  const token = state.about.token ? " -H \"Authorization: Bearer $ETUDE_TOKEN\"" : "";
  const curl = method === "post"
    ? `curl ${location.origin}${path} -H 'Content-Type: application/json'${token} -d '${JSON.stringify(example)}'`
    : `curl ${location.origin}${path}${token}`;
  const statuses = Object.entries(route.responses || {}).map(([status, response]) => h("li", {}, h("code", {}, status), ` ${response.description}`));
  return h("details", {class: "card route", id: name || "root", open: location.hash.slice(1) === name},
    h("summary", {}, h("b", {}, `${method.toUpperCase()} ${path}`), " ", h("span", {class: "small"}, getLanguage() === "ko" && KOREAN[name] || route.summary || "")),
    route.description ? h("p", {class: "lead"}, route.description) : null,
    body ? drawFields(body) : null, h("pre", {class: "code"}, curl),
    method === "post" ? [h("h3", {}, t("api_answers")), h("ul", {class: "statuses"}, statuses)] : null);
}

// What people call comes first: the endpoints of runs, then those about the server, then the board's.
const rank = (path, methods) => ("post" in methods ? 0 : path.startsWith("/board") ? 2 : 1);

function draw() {
  drawHead("api", state.about.board);
  const routes = Object.entries(state.schema.paths).sort((left, right) => rank(...left) - rank(...right)).flatMap(([path, methods]) => Object.entries(methods).map(([method, route]) => drawRoute(path, method, route)));
  clear(document.getElementById("routes")).append(...routes);
}

start("api", () => (state.schema ? draw() : drawHead("api", false)));
[state.about, state.schema] = await load(() => Promise.all([getJson("/about"), getJson("/openapi.json")]));
draw();
