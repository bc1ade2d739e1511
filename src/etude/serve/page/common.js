// What all pages share: elements, requests with the token, the head of the page, light and dark.
"use strict";
import { firstLanguage, getLanguage, setLanguage, t } from "./words.js";

// An element; properties that begin with "on" are listeners, "class" and ARIA names are attributes.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name in element && name !== "list" && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const clear = element => { element.replaceChildren(); return element; };
export const lines = text => text.split("\n").map(line => line.trim()).filter(Boolean);
export const percent = share => `${(100 * share).toFixed(1)} %`;

// Draw again what has the focus: the keyboard stays where it was, on the new element of the same id.
export function keepFocus(draw) {
  const {id} = document.activeElement || {};
  draw();
  if (id) document.getElementById(id)?.focus({preventScroll: true});
}

export class HttpError extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

const token = () => sessionStorage.getItem("etude-token");

export async function request(path, options = {}) {
  const headers = {...(options.headers || {})};
  if (token()) headers.Authorization = `Bearer ${token()}`;
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new HttpError(0, t("unreachable"));
  }
  if (response.status === 401) {
    await askToken();
    return request(path, options);
  }
  if (!response.ok) {
    let detail = `${response.status} ${response.statusText}`;
    try { detail = (await response.json()).detail || detail; } catch { /* not JSON */ }
    throw new HttpError(response.status, detail);
  }
  return response;
}

export const getJson = async path => (await request(path)).json();

export const post = (path, body, signal) =>
  request(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});

function askToken() {
  return new Promise(resolve => {
    const field = h("input", {type: "password", required: true, autocomplete: "off", "aria-label": t("token_title")});
    const dialog = h("dialog", {},
      h("form", {onsubmit: event => {
        event.preventDefault();
        sessionStorage.setItem("etude-token", field.value.trim());
        dialog.close();
        dialog.remove();
        resolve();
      }},
      h("h2", {}, t("token_title")), h("p", {class: "lead"}, t("token_lead")),
      h("div", {class: "field"}, field),
      h("div", {class: "actions"}, h("button", {class: "primary"}, t("token_enter")))));
    dialog.addEventListener("cancel", event => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
  });
}

// --- the head of the page ------------------------------------------------------------------------

let redraw = () => {};

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

function theme() {
  let stored = null;
  try { stored = localStorage.getItem("etude-theme"); } catch { /* a private window */ }
  return stored || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

export function drawHead(current, board) {
  const pages = [["try", "/"], ["api", "/api"], ...(board ? [["board", "/board"]] : [])]; // the board comes last: it is known last
  const dark = document.documentElement.dataset.theme === "dark";
  clear(document.querySelector(".top")).append(
    h("a", {class: "brand", href: "/"}, "ETUDE"),
    h("nav", {}, pages.map(([name, path]) => h("a", {href: path, "aria-current": name === current ? "page" : null}, t(name)))),
    h("div", {class: "tools"},
      h("button", {type: "button", id: "theme", onclick: () => {
        setTheme(dark ? "light" : "dark");
        try { localStorage.setItem("etude-theme", dark ? "light" : "dark"); } catch { /* a private window */ }
        redraw();
      }}, t(dark ? "theme_light" : "theme_dark")),
      h("button", {type: "button", id: "language", lang: getLanguage() === "ko" ? "en" : "ko", onclick: () => {
        setLanguage(getLanguage() === "ko" ? "en" : "ko");
        redraw();
      }}, t("language"))));
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
}

// Start a page: its head is drawn at once, and `draw` is called when the language or the colours change.
export function start(current, draw) {
  redraw = () => keepFocus(draw);
  setLanguage(firstLanguage());
  setTheme(theme());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { setTheme(theme()); redraw(); });
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("etude-token", given);
    history.replaceState(null, "", location.pathname);
  }
  drawHead(current, current === "board");
}

// What a page needs before it is drawn; where the server does not answer, the page says so and offers to ask again.
export async function load(read) {
  const main = document.getElementById("main"), note = h("p", {class: "lead", role: "status"});
  for (;;) {
    const late = setTimeout(() => { note.textContent = t("loading"); main.prepend(note); }, 300);
    try {
      return await read();
    } catch (error) {
      clearTimeout(late);
      main.prepend(note);
      await new Promise(again => clear(note).append(h("span", {class: "problem"}, error.message), " ", h("button", {class: "plain", type: "button", id: "again", onclick: again}, t("again"))));
    } finally {
      clearTimeout(late);
      note.remove();
    }
  }
}

export const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
