// Answers as people read them: bars, coloured spans, highlighted answers, paths.
"use strict";
import { clear, h, percent } from "./common.js";
import { t } from "./words.js";

function bar(name, share, label, best = false, onclick = null) {
  return h("li", {}, h(onclick ? "button" : "div", {class: `bar${best ? " best" : ""}`, type: onclick ? "button" : null, onclick},
    h("i", {style: {width: `${Math.max(0, Math.min(1, share)) * 100}%`}}), h("span", {}, name), h("b", {}, label)));
}

const bars = (...rows) => h("ul", {class: "bars"}, ...rows);
const cases = items => items.map(item => h("div", {class: "case"}, ...item));

// --- fill ----------------------------------------------------------------------------------------

export function showFill(results, texts) {
  return cases(results.map((result, number) => {
    const quote = h("p", {class: "quote"});
    const parts = texts[number].split("[MASK]");
    const chosen = result.blanks.map(guesses => guesses[0]);
    const redraw = () => {
      clear(quote);
      parts.forEach((part, at) => quote.append(part, ...(at < chosen.length ? [h("mark", {}, plain(chosen[at].token))] : [])));
    };
    redraw();
    const lists = result.blanks.map((guesses, at) => [
      result.blanks.length > 1 ? h("h2", {class: "minor"}, `[MASK] ${at + 1}`) : null,
      bars(...guesses.map((guess, rank) => bar(plain(guess.token), guess.probability, percent(guess.probability), rank === 0, () => { chosen[at] = guess; redraw(); }))),
    ]);
    return [quote, h("div", {style: {marginTop: "1.1rem"}}, lists)];
  }));
}

// A token without the marks of its tokenizer.
const plain = token => token.replace(/^##/, "").replace(/^[Ġ▁]/, "") || token;

// --- translate, similarity, neighbours -----------------------------------------------------------

export function showTranslation(results, texts, align) {
  return cases(results.map((result, number) => [
    h("p", {class: "source"}, texts[number]),
    h("p", {class: "quote"}, result.text || t("empty_translation"), result.nbest.length > 1 ? h("b", {class: "number small"}, ` ${result.score.toFixed(2)}`) : null),
    result.nbest.length > 1 ? h("details", {class: "nbest"}, h("summary", {}, t("alternatives")), h("ol", {start: 2}, result.nbest.slice(1).map(each => h("li", {}, each.text, h("b", {class: "number small"}, ` ${each.score.toFixed(2)}`))))) : null,
    align && result.text ? h("div", {class: "actions"}, h("button", {class: "plain", type: "button", onclick: () => align(texts[number], result.text)}, t("show_alignment"))) : null,
  ]));
}

export const showSimilarity = (results, texts) => bars(...results.map((result, number) => bar(texts[number], result.cosine, result.cosine.toFixed(3), number === 0)));

const listNeighbours = result => bars(...result.neighbours.map((each, rank) => bar(each.word, each.cosine, each.cosine.toFixed(3), rank === 0)));

export const showNeighbours = (results, words) => cases(results.map((result, number) => [h("h2", {}, words[number]), h("div", {style: {marginTop: ".7rem"}}, listNeighbours(result))]));

export const showAnalogy = (results, {a, b, c}) => cases(results.map(result => [
  h("p", {class: "source"}, `${a} : ${b} = ${c} : …`), listNeighbours(result)]));

// --- tasks ---------------------------------------------------------------------------------------

export function showPrediction(answers, inputs, run) {
  const types = [...new Set(answers.flatMap(answer => listTags(answer).map(span => span.type)))].sort(); // a type has one colour in all texts
  return cases(answers.map((answer, number) => {
    const input = inputs[number];
    const source = h("p", {class: "source"}, typeof input === "string" ? input : Object.values(input).filter(value => typeof value === "string").join("\n"));
    if (answer.tags) return [showTags(answer, types)];
    if (answer.nbest) return showSpan(answer, input, run);
    if (Array.isArray(answer.scores) && typeof input === "object") return [source, showList(answer, input)];
    if (answer.scores) return [source, showLabels(answer)];
    if (typeof answer.score === "number") return [source, h("p", {class: "quote number"}, h("span", {class: "given"}, `${t("score")} `), answer.score.toFixed(3))];
    return [source, h("pre", {class: "code"}, JSON.stringify(answer, null, 1))];
  }));
}

function showLabels(answer) {
  const chosen = new Set([answer.label, ...(answer.labels || [])].filter(Boolean));
  const rows = Object.entries(answer.scores).sort((left, right) => right[1] - left[1]);
  return [
    answer.label === null ? h("p", {class: "small"}, t("withheld")) : null,
    bars(...rows.slice(0, 12).map(([label, share]) => bar(label, share, percent(share), chosen.has(label)))),
  ];
}

function showList(answer, input) {
  const items = Object.values(input).find(Array.isArray) || [];
  const sum = values => values.reduce((total, value) => total + value, 0);
  const are_shares = answer.scores.every(score => score >= 0) && Math.abs(sum(answer.scores) - 1) < 1e-3;
  const highest = Math.max(...answer.scores), weights = are_shares ? answer.scores : answer.scores.map(score => Math.exp(score - highest));
  const total = sum(weights);
  const order = answer.scores.map((_, at) => at).sort((left, right) => answer.scores[right] - answer.scores[left]);
  return bars(...order.map((at, rank) => bar(String(items[at] ?? at), weights[at] / total, are_shares ? percent(answer.scores[at]) : answer.scores[at].toFixed(3), rank === 0)));
}

// Words as a sentence: no space before a full stop, none behind an opening bracket.
const closes = word => /^[.,;:!?%)\]}”’…。、，]/.test(word), opens = word => /^[(\[{“‘]$/.test(word);
const gap = (words, at) => (at > 0 && at < words.length && !closes(words[at]) && !opens(words[at - 1]) ? " " : "");
const join = (words, start, end) => words.slice(start, end).map((word, at) => (at ? gap(words, start + at) : "") + word).join("");

const listTags = answer => (answer.tags ? answer.entities || answer.tags.map((tag, at) => ({type: tag, start: at, end: at + 1})) : []);

// Words with their tags: entities as coloured spans, other tags under each word.
function showTags(answer, types) {
  const colour = type => `t${types.indexOf(type) % 8}`;
  const spans = listTags(answer), words = answer.tokens;
  const text = h("p", {class: "tagged"});
  let at = 0;
  for (const span of [...spans].sort((left, right) => left.start - right.start)) {
    if (span.start > at) text.append(gap(words, at) + join(words, at, span.start));
    text.append(gap(words, span.start), h("span", {class: `span ${colour(span.type)}`}, join(words, span.start, span.end), h("sup", {}, span.type)));
    at = span.end;
  }
  if (at < words.length) text.append(gap(words, at) + join(words, at, words.length));
  return [text, spans.length ? null : h("p", {class: "small"}, t("nothing_tagged"))];
}

function showSpan(answer, input, run) {
  // places are those of the composed text (NFC), which the model read
  const context = (input[run.roles.context] ?? "").normalize("NFC"), best = answer.nbest[0];
  const quote = h("p", {class: "quote"});
  const place = (text, start) => {
    // places count code points, and JavaScript's strings do not
    const letters = Array.from(context), end = start + Array.from(text).length;
    clear(quote).append(letters.slice(0, start).join(""), h("mark", {}, letters.slice(start, end).join("")), letters.slice(end).join(""));
  };
  if (answer.answer && best) place(best.text, best.start);
  else quote.append(context);
  const spans = [...answer.nbest].sort((left, right) => right.score - left.score), highest = spans.length ? spans[0].score : 0;
  const weights = spans.map(each => Math.exp(each.score - highest)), total = weights.reduce((sum, weight) => sum + weight, 0);
  return [
    h("h2", {}, answer.answer || t("no_answer")), quote,
    spans.length ? h("h3", {}, t("candidate_spans")) : null,
    bars(...spans.slice(0, 5).map((each, at) => bar(each.text, weights[at] / total, each.score.toFixed(2), at === 0 && Boolean(answer.answer), () => place(each.text, each.start)))),
  ];
}

// --- paths ---------------------------------------------------------------------------------------

export function showPaths([result]) {
  return result.answers.map((answer, number) => {
    const paths = answer.pairs.flatMap(pair => pair.paths).sort((left, right) => (right.weight ?? 0) - (left.weight ?? 0));
    return h("details", {open: number === 0},
      h("summary", {}, `${answer.text} · ${percent(answer.probability)}`),
      paths.length ? paths.slice(0, 12).map(showPath) : h("p", {class: "small"}, t("no_path")));
  });
}

function showPath(path) {
  const parts = path.concepts.flatMap((concept, at) => [
    h("span", {class: "concept"}, concept),
    at < path.hops.length ? h("span", {class: "hop"}, path.hops[at].reverse ? `← ${path.hops[at].relation} —` : `— ${path.hops[at].relation} →`) : null,
  ]);
  return h("div", {class: "path"}, parts, path.weight === null ? null : h("span", {class: "share"}, percent(path.weight)));
}
