// Everything the pages say, in English and Korean.
"use strict";

const WORDS = {
  skip: ["Skip to the content", "본문으로 건너뛰기"],
  try: ["Try", "써 보기"],
  board: ["Board", "보드"],
  api: ["API", "API"],
  language: ["한국어", "English"],
  theme_dark: ["Dark", "어둡게"],
  theme_light: ["Light", "밝게"],
  ask: ["Ask", "묻기"],
  stop: ["Stop", "멈추기"],
  options: ["Options", "설정"],
  waiting: ["Working …", "계산하는 중 …"],
  loading: ["Loading …", "불러오는 중 …"],
  again: ["Try again", "다시 시도"],
  missing: ["Write something in “{}”.", "“{}” 칸을 채워 주세요."],
  bad_json: ["Line {} is not valid JSON.", "{}번째 줄이 올바른 JSON이 아닙니다."],
  abilities: ["What this run can do", "이 실행이 할 수 있는 것"],
  runs: ["Runs", "실행"],
  empty: ["The answer appears here.", "답이 여기에 나타납니다."],
  token_title: ["This server asks for a token", "이 서버에는 접속 토큰이 필요합니다"],
  token_lead: ["The person who started the server has set it as ETUDE_TOKEN.", "서버를 시작한 사람이 ETUDE_TOKEN에 정해 두었습니다."],
  token_enter: ["Enter", "들어가기"],
  no_runs: ["No run is loaded here", "불러온 실행이 없습니다"],
  no_runs_lead: ["This server shows a board of runs and studies.", "이 서버는 실행과 연구의 보드를 보여 줍니다."],
  unreachable: ["The server cannot be reached.", "서버에 닿을 수 없습니다."],
  // endpoints
  fill: ["Fill", "채우기"],
  fill_lead: ["Write [MASK] where something is missing.", "빠진 자리에 [MASK]라고 쓰세요."],
  fill_text: ["The [MASK] sat on the mat.", "고양이가 [MASK] 위에 앉았다."],
  generate: ["Generate", "쓰기"],
  generate_lead: ["The model continues your text, token by token.", "모형이 글을 토큰 하나씩 이어 씁니다."],
  generate_text: ["Once upon a time", "옛날 옛적에"],
  translate: ["Translate", "번역"],
  translate_lead: ["One text per line. With a temperature, top k or top p the translation is drawn at random; without, beam search finds it.", "한 줄에 글 하나씩 쓰세요. 온도, top k, top p 가운데 하나를 정하면 무작위로 뽑고, 정하지 않으면 빔 탐색으로 찾습니다."],
  translate_text: ["The cat sat on the mat.", "The cat sat on the mat."],
  attention: ["Attention", "어텐션"],
  attention_lead: ["What each token looks at, in every head of every layer.", "모든 층의 모든 헤드에서 토큰마다 무엇을 보는지 보여 줍니다."],
  attention_text: ["The cat sat on the mat because it was warm.", "고양이는 따뜻해서 매트 위에 앉았다."],
  similarity: ["Similarity", "유사도"],
  similarity_lead: ["One text per line; each is compared with the first.", "한 줄에 글 하나씩 쓰세요. 모두 첫 글과 비교합니다."],
  similarity_text: ["The cat sat on the mat.\nA dog lay on the rug.\nPrices rose in March.", "고양이가 매트 위에 앉았다.\n개가 양탄자에 누웠다.\n3월에 물가가 올랐다."],
  neighbours: ["Neighbours", "이웃 낱말"],
  neighbours_lead: ["The words nearest to a word.", "한 낱말에 가장 가까운 낱말들입니다."],
  analogy: ["Analogy", "유추"],
  analogy_lead: ["a is to b as c is to …", "a와 b의 관계는 c와 …의 관계와 같다"],
  paths: ["Paths", "경로"],
  paths_lead: ["Which paths of the graph join a question with its answers.", "그래프의 어떤 경로가 질문과 답을 잇는지 보여 줍니다."],
  predict: ["Predict", "예측"],
  predict_classify: ["Classify", "분류"],
  predict_tag: ["Tag", "태깅"],
  predict_span: ["Answer", "답하기"],
  predict_choice: ["Choose", "고르기"],
  predict_graph_choice: ["Choose", "고르기"],
  predict_rank: ["Rank", "순위"],
  predict_pair: ["Compare", "비교"],
  predict_similarity: ["Rate", "유사도 점수"],
  predict_relation: ["Relate", "관계"],
  predict_entity_typing: ["Type", "개체 유형"],
  predict_lead: ["One text per line.", "한 줄에 글 하나씩 쓰세요."],
  predict_parts_lead: ["Fill in the parts of the input.", "입력의 각 부분을 채우세요."],
  predict_span_lead: ["Ask something that the context answers; the answer is marked in it.", "지문에 답이 있는 질문을 쓰세요. 답을 지문에 표시합니다."],
  predict_json_lead: ["One JSON object per line.", "한 줄에 JSON 객체 하나씩 쓰세요."],
  // fields
  text: ["Text", "글"],
  texts: ["Texts", "글"],
  word: ["Word", "낱말"],
  source: ["Source", "원문"],
  second: ["Second text, or a translation (optional)", "둘째 글 또는 번역문 (선택)"],
  question: ["Question", "질문"],
  context: ["Context", "지문"],
  choices: ["Choices, one per line", "보기, 한 줄에 하나씩"],
  query: ["Query", "질의"],
  candidates: ["Candidates, one per line", "후보, 한 줄에 하나씩"],
  first: ["First text", "첫째 글"],
  second_text: ["Second text", "둘째 글"],
  tokens_field: ["Sentence", "문장"],
  input: ["Input", "입력"],
  top: ["Guesses", "개수"],
  tokens: ["Tokens", "토큰 수"],
  temperature: ["Temperature", "온도"],
  top_k: ["Top k", "top k"],
  top_p: ["Top p", "top p"],
  seed: ["Seed", "시드"],
  beams: ["Beams", "빔 수"],
  best: ["Translations", "번역 수"],
  empty_translation: ["(an empty translation)", "(빈 번역)"],
  alternatives: ["Others, by score", "다른 번역과 점수"],
  pool: ["Pooling", "풀링"],
  // answers
  candidate_spans: ["Candidates, by score", "답 후보와 점수"],
  no_answer: ["The text holds no answer.", "글에 답이 없습니다."],
  withheld: ["Not sure enough to answer", "답할 만큼 확실하지 않음"],
  nothing_tagged: ["No entity was found.", "개체를 찾지 못했습니다."],
  looks_at: ["“{}” looks at", "“{}”: 보는 토큰"],
  map_of: ["Attention map: rows look at columns", "어텐션 지도: 행이 열을 봅니다"],
  layer: ["Layer", "층"],
  head: ["Head", "헤드"],
  cut: ["The text was longer than the model's context and was cut.", "글이 모형의 문맥보다 길어 잘렸습니다."],
  no_path: ["No path joins this answer with the question.", "이 답과 질문을 잇는 경로가 없습니다."],
  score: ["Score", "점수"],
  per_second: ["pieces a second", "조각/초"],
  ended_end: ["The model ended the text here.", "모형이 여기서 글을 끝냈습니다."],
  ended_tokens: ["It stopped at the number of tokens asked for.", "정한 토큰 수에서 멈췄습니다."],
  ended_context: ["It stopped at the end of the model's context.", "모형의 문맥이 끝나 멈췄습니다."],
  show_alignment: ["Show the alignment", "정렬 보기"],
};

let language = "en";

export function setLanguage(name) {
  language = name;
  document.documentElement.lang = name;
  try { localStorage.setItem("etude-language", name); } catch { /* a private window */ }
}

export function getLanguage() { return language; }

export function firstLanguage() {
  let stored = null;
  try { stored = localStorage.getItem("etude-language"); } catch { /* a private window */ }
  return stored || (navigator.language.startsWith("ko") ? "ko" : "en");
}

// The words of a key; a key that has none stands for itself (names of labels, columns).
export function t(key) { return key in WORDS ? WORDS[key][language === "ko" ? 1 : 0] : key; }

export function has(key) { return key in WORDS; }

export function addWords(words) { Object.assign(WORDS, words); }
