// LaTeX in an answer: found by rules of markdown-it, drawn as MathML by Temml, which is loaded when it is first needed.

import { el } from "../shared/dom.js";

const MAX_SOURCE = 10_000; // characters of one formula; a longer one stays text
const MATHML = "http://www.w3.org/1998/Math/MathML";
const OPTIONS = { throwOnError: true, trust: false, strict: false, maxSize: [20, 20], maxExpand: 500, annotate: false };
const KEPT = /^(?!on|href$|xlink|src$|id$|action)/i; // attributes that a formula may have

let temml = null;
let loading = null;

/** Begins to load what draws formulas; resolves when it is there. */
function load() {
  loading ??= import("../vendor/temml/temml.js").then((module) => {
    temml = module.default;
  });
  return loading;
}

/** Inline: $…$, $$…$$, \(…\), \[…\]. A dollar before a digit or a space is money. */
function inlineRule(state, silent) {
  const { src, pos, posMax } = state;
  const start = src.slice(pos, pos + 2);
  const [open, close, display] =
    start === "\\(" ? ["\\(", "\\)", false] : start === "\\[" ? ["\\[", "\\]", true] : start === "$$" ? ["$$", "$$", true] : start[0] === "$" ? ["$", "$", false] : [];
  if (!open) return false;
  const from = pos + open.length;
  state.unclosed ??= new Set(); // what a paragraph does not close is looked for once
  if (state.unclosed.has(close)) return false;
  let end = src.indexOf(close, from);
  if (end < 0) state.unclosed.add(close);
  if (open === "$") {
    if (/\s/.test(src[from] ?? " ")) return false;
    while (end >= 0 && (/[\s\\]/.test(src[end - 1]) || /\d/.test(src[end + 1] ?? ""))) end = src.indexOf("$", end + 1);
  }
  if (end <= from || end + close.length > posMax || end - from > MAX_SOURCE) return false;
  const source = src.slice(from, end);
  if (open === "$" && source.includes("`")) return false; // the dollars of two prices, or of code
  if (!silent) {
    const token = state.push("math", "", 0);
    token.content = source;
    token.meta = { display };
  }
  state.pos = end + close.length;
  return true;
}

/** Blocks: a line that begins with $$ or \[, up to the line that ends with its other half. */
function blockRule(state, startLine, endLine, silent) {
  const first = state.src.slice(state.bMarks[startLine] + state.tShift[startLine], state.eMarks[startLine]);
  const [open, close] = first.startsWith("$$") ? ["$$", "$$"] : first.startsWith("\\[") ? ["\\[", "\\]"] : [];
  if (!open || state.sCount[startLine] - state.blkIndent >= 4) return false;
  state.stops ??= new Map(); // close → the line before which there is none
  if (startLine < (state.stops.get(close) ?? 0)) return false;
  const lines = [];
  for (let line = startLine; line < endLine; line += 1) {
    const begin = line === startLine ? state.bMarks[line] + state.tShift[line] + open.length : state.bMarks[line];
    const text = state.src.slice(begin, state.eMarks[line]).trimEnd();
    if (line > startLine && state.sCount[line] < state.blkIndent) {
      state.stops.set(close, line);
      return false;
    }
    if (text.endsWith(close) && (line > startLine || text.length > 0)) {
      lines.push(text.slice(0, -close.length));
      if (lines.join("\n").length > MAX_SOURCE) return false;
      if (silent) return true;
      const token = state.push("math_block", "", 0);
      token.content = lines.join("\n").trim();
      token.meta = { display: true };
      token.map = [startLine, line + 1];
      state.line = line + 1;
      return true;
    }
    lines.push(text);
  }
  state.stops.set(close, endLine);
  return false;
}

export function addMaths(md) {
  md.inline.ruler.before("escape", "math", inlineRule);
  md.block.ruler.before("fence", "math_block", blockRule, { alt: ["paragraph", "blockquote", "list"] });
}

/** A formula; until Temml is there, and where it is no LaTeX, its source. */
export function mathNode(source, display) {
  const holder = el(display ? "div" : "span", { class: display ? "math display" : "math", ...(display && { tabindex: "0", role: "group", "aria-label": "Formula" }) });
  if (temml) fill(holder, source, display);
  else {
    holder.append(el("code", { class: "math-source" }, source));
    load().then(() => fill(holder, source, display), () => {});
  }
  return holder;
}

function fill(holder, source, display) {
  const drawn = document.createElement("span");
  try {
    temml.render(source, drawn, { ...OPTIONS, displayMode: display });
    const math = drawn.querySelector("math");
    if (!math) throw new Error("nothing drawn");
    clean(math);
    holder.replaceChildren(math);
  } catch (error) {
    holder.replaceChildren(el("code", { class: "math-source", title: String(error.message ?? error).slice(0, 200) }, source));
  }
}

/** Temml draws MathML alone, without links: this holds it to that. */
function clean(math) {
  for (const node of [math, ...math.querySelectorAll("*")]) {
    if (node.namespaceURI !== MATHML || node.localName === "annotation-xml") {
      node.replaceWith(document.createTextNode(node.textContent));
      continue;
    }
    for (const { name } of [...node.attributes]) if (!KEPT.test(name)) node.removeAttribute(name);
  }
}
