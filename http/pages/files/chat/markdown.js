// Markdown as DOM nodes, from markdown-it's tokens. Model output is hostile: only the elements below are made, links go
// to other sites alone, and pictures are never loaded.

import MarkdownIt from "../vendor/markdown-it/markdown-it.js";
import { el, icon } from "../shared/dom.js";
import { addMaths, mathNode } from "./maths.js";
import { paint } from "./highlight.js";
import { hasHidden, longText, textNodes } from "./plain_text.js";

const md = new MarkdownIt("default", { html: false, linkify: true, breaks: true, typographer: false, maxNesting: 40 });
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
md.validateLink = (url) => safeAddress(url) !== null;
addMaths(md);

const CONTAINERS = new Set(["ul", "ol", "li", "blockquote", "thead", "tbody", "tr", "th", "td", "strong", "em", "s", "p"]);
const MAX_PAINTED = 20_000; // characters of a block of code that gets colours

/** The address, if it leads to another site by http, https or mail; null: none that may be a link. */
export function safeAddress(text) {
  let url;
  try {
    url = new URL(text); // without a base: a path would be a route of this server
  } catch {
    return null;
  }
  const isWeb = (url.protocol === "https:" || url.protocol === "http:") && url.origin !== location.origin && !url.username && !url.password;
  return isWeb || url.protocol === "mailto:" ? url.href : null;
}

/** Blocks of the top level. @returns {object[]} markdown-it's tokens */
export const parse = (text) => md.parse(text, {});

/** Where each block of the top level begins: [index of its first token, its first line]. */
export function topBlocks(tokens) {
  const found = [];
  tokens.forEach((token, index) => {
    if (token.level === 0 && token.nesting >= 0 && token.map) found.push([index, token.map[0]]);
  });
  return found;
}

/**
 * @param {object[]} tokens
 * @param {{level: number}} outline of the heading before; changed, so that no level is left out
 * @returns {DocumentFragment}
 */
export function build(tokens, outline = { level: 2 }) {
  const root = document.createDocumentFragment();
  const stack = [root];
  for (const token of tokens) {
    if (token.hidden) continue;
    if (token.type === "inline") buildInline(token.children, stack.at(-1));
    else if (token.nesting === 1) {
      const [outer, inner] = opened(token, outline);
      stack.at(-1).append(outer);
      stack.push(inner);
    } else if (token.nesting === -1) stack.pop();
    else stack.at(-1).append(single(token));
  }
  return root;
}

/** [the element to put in, the element that takes what follows] */
function opened(token, outline) {
  const { tag } = token;
  if (/^h[1-6]$/.test(tag)) {
    outline.level = Math.min(6, Number(tag[1]) + 2, outline.level + 1); // the page has h1, each message h2
    const heading = el(`h${outline.level}`, { dir: "auto" });
    return [heading, heading];
  }
  if (tag === "table") {
    const table = el("table");
    return [el("div", { class: "table", role: "region", "aria-label": "Table", tabindex: "0" }, table), table];
  }
  if (tag === "a") return linked(token);
  const isKnown = CONTAINERS.has(tag);
  const node = el(isKnown ? tag : "div", { dir: tag === "p" || tag === "li" ? "auto" : null });
  const align = /text-align:(left|center|right)/.exec(token.attrGet("style") ?? "");
  if (align) node.classList.add(`align-${align[1]}`);
  if (tag === "ol" && /^\d{1,9}$/.test(String(token.attrGet("start") ?? ""))) node.setAttribute("start", token.attrGet("start"));
  return [node, node];
}

function linked(token) {
  const address = safeAddress(token.attrGet("href") ?? "");
  if (address === null) {
    const span = el("span");
    return [span, span];
  }
  const link = el("a", { href: address, title: address.slice(0, 500), target: "_blank", rel: "noopener noreferrer nofollow", referrerpolicy: "no-referrer" });
  return [link, link];
}

function single(token) {
  switch (token.type) {
    case "fence":
    case "code_block":
      return codeBlock(token.content, token.info?.trim().split(/\s+/)[0] ?? "");
    case "math_block":
      return mathNode(token.content, true);
    case "hr":
      return el("hr");
    default:
      return el("p", {}, ...textNodes(token.content));
  }
}

function buildInline(tokens, root) {
  const stack = [root];
  for (const token of tokens) {
    const here = stack.at(-1);
    if (token.nesting === 1) {
      const [outer, inner] = opened(token);
      here.append(outer);
      stack.push(inner);
    } else if (token.nesting === -1) stack.pop();
    else if (token.type === "code_inline") here.append(el("code", {}, ...textNodes(token.content)));
    else if (token.type === "softbreak" || token.type === "hardbreak") here.append(el("br"));
    else if (token.type === "math") here.append(mathNode(token.content, token.meta.display));
    else if (token.type === "image") here.append(picture(token));
    else here.append(...textNodes(token.content));
  }
}

/** A picture would tell its server who reads this: a link, which the reader may follow. */
function picture(token) {
  const address = safeAddress(token.attrGet("src") ?? "");
  const words = `picture: ${token.content || "without a description"}`;
  if (address === null) return el("span", { class: "picture" }, ...textNodes(words));
  return el("a", { class: "picture", href: address, title: address.slice(0, 500), target: "_blank", rel: "noopener noreferrer nofollow", referrerpolicy: "no-referrer" }, ...textNodes(words));
}

/** A block of code with a button that copies it. `node.code` is its text node while nothing has painted it. */
export function codeBlock(text, language, { isOpen = false } = {}) {
  const name = /^[\w#+.-]{1,30}$/.test(language) ? language : "";
  const code = el("code", {});
  const copy = el("button", { type: "button", class: "copy-code", "data-copies": "code" }, icon("copy"), el("span", {}, "Copy"));
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": name ? `Code, ${name}` : "Code", dir: "ltr" }, code);
  const block = el("div", { class: "code" }, el("div", { class: "code-bar" }, el("span", { class: "language" }, name), copy), pre);
  block.source = text;
  if (isOpen) code.append(document.createTextNode(text));
  else if (text.length > MAX_PAINTED || hasHidden(text)) code.append(...longText(text));
  else code.append(paint(text, name));
  return block;
}
