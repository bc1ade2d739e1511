// Model cards as people read them: headings, paragraphs, lists, tables and code of Markdown, and nothing else.
"use strict";
import { h } from "./common.js";

const inline = text => text.split(/(`[^`]+`)/).map(part => (part.startsWith("`") && part.length > 2 ? h("code", {}, part.slice(1, -1)) : part.replace(/\*\*/g, "")));
const cells = line => line.replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());

export function showMarkdown(text) {
  const body = text.replace(/^---\n[\s\S]*?\n---\n/, ""); // what hubs read
  const elements = [], lines = body.split("\n");
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at], heading = /^(#{1,4}) (.*)/.exec(line);
    if (!line.trim()) continue;
    if (heading) elements.push(h(`h${Math.min(3, heading[1].length + 1)}`, {}, inline(heading[2])));
    else if (line.startsWith("```")) {
      const code = [];
      for (at++; at < lines.length && !lines[at].startsWith("```"); at++) code.push(lines[at]);
      elements.push(h("pre", {class: "code"}, code.join("\n")));
    } else if (/^ {4}/.test(line)) {
      const code = [];
      for (; at < lines.length && (/^ {4}/.test(lines[at]) || (!lines[at].trim() && /^ {4}/.test(lines[at + 1] || ""))); at++) code.push(lines[at].slice(4));
      at--;
      elements.push(h("pre", {class: "code"}, code.join("\n")));
    } else if (line.startsWith("|")) {
      const rows = [];
      for (; at < lines.length && lines[at].startsWith("|"); at++) if (!/^\|[\s:|-]+$/.test(lines[at])) rows.push(h("tr", {}, cells(lines[at]).map(cell => h("td", {}, inline(cell)))));
      at--;
      elements.push(h("div", {class: "scroll"}, h("table", {}, h("tbody", {}, rows))));
    } else if (/^[-*] /.test(line)) {
      const items = [];
      for (; at < lines.length && /^[-*] /.test(lines[at]); at++) items.push(h("li", {}, inline(lines[at].slice(2))));
      at--;
      elements.push(h("ul", {}, items));
    } else elements.push(h("p", {}, inline(line)));
  }
  return elements;
}
