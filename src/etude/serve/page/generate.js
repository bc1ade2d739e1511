// A text that is written while one reads: server-sent events over fetch, which can carry a token.
"use strict";
import { clear, h, post } from "./common.js";
import { t } from "./words.js";

export async function generate(answer, body, signal) {
  const written = h("span", {}), text = h("p", {class: "quote cursor"}, h("span", {class: "given"}, body.input), written);
  const note = h("p", {class: "small number"});
  clear(answer).append(text, note);
  const begin = performance.now();
  let pieces = 0;
  try {
    const response = await post("/generate", {...body, stream: true}, signal);
    for await (const [event, data] of readEvents(response)) {
      if (event === "error") throw new Error(data.detail);
      if (event === "end") note.append(...(note.textContent ? [" · "] : []), t(`ended_${data.ended}`));
      if (event === "piece") {
        written.append(data.text);
        pieces += 1;
        note.textContent = `${(1000 * pieces / (performance.now() - begin)).toFixed(0)} ${t("per_second")}`;
      }
    }
  } finally {
    text.classList.remove("cursor");
  }
}

async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const [name, data] = block.split("\n");
      yield [name.slice(7), JSON.parse(data.slice(6))];
    }
  }
}
