// A whole text as markdown: its beginning at once, the rest in further tasks, so that the page answers meanwhile.

import { el } from "../shared/dom.js";
import { build, parse, topBlocks } from "./markdown.js";
import { longText } from "./plain_text.js";
import { MAX_DRAWN, portions } from "./portions.js";

export const MAX_MARKDOWN = 400_000; // characters; a longer text is shown as it was written
const PIECE = 20_000; // characters that are parsed in one go
const MAX_PIECE = 50_000; // likewise, of a block that is longer; what begins with a longer one is shown as it was written
export const REFERENCES = /^ {0,3}\[[^\]\n]+\]: /m; // a definition that links above may need

/** What one portion of a text looks like. @param {string[]} lines of the text */
export function drawPortion(part, tokens, lines, outline) {
  if (!part.isPlain) return build(tokens.slice(part.from, part.to), outline);
  return asWritten(lines.slice(part.line, part.end).join("\n"));
}

function asWritten(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(el("p", { class: "as-written" }, "This part is long, and is shown as it was written:"), el("div", { class: "plain" }, ...longText(text)));
  return fragment;
}

/**
 * The next part of a text that is parsed in one go: whole blocks of the top level, or the one block that is longer.
 * @returns {{tokens: object[], lines: string[], end: number, rest: string}} `end`: where the next one begins; `rest`: what
 *   is not to be parsed at all
 */
export function readPiece(text, from, size = PIECE) {
  for (;;) {
    const piece = text.slice(from, from + size);
    const tokens = parse(piece);
    const lines = piece.split("\n");
    if (from + size >= text.length) return { tokens, lines, end: text.length, rest: "" };
    const blocks = topBlocks(tokens);
    if (blocks.length > 1) {
      const [index, line] = blocks.at(-1); // which may be cut off
      return { tokens: tokens.slice(0, index), lines, end: from + lineOffset(piece, line), rest: "" };
    }
    size *= 2;
    if (size > MAX_PIECE) return { tokens: [], lines: [], end: text.length, rest: text.slice(from) };
  }
}

/** Where a line begins. */
export function lineOffset(text, line) {
  let offset = 0;
  for (let passed = 0; passed < line; passed += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}

/**
 * Puts a text behind what `container` has. A later call for the same container ends this one.
 * @param {{level: number}} outline of the heading before
 */
export function drawWhole(container, text, outline = { level: 2 }) {
  const own = {};
  container.drawing = own;
  if (text.length > MAX_MARKDOWN) {
    container.append(el("div", { class: "plain" }, ...longText(text)));
    return;
  }
  const size = text.length <= MAX_PIECE && REFERENCES.test(text) ? text.length : PIECE;
  let piece = { end: 0 };
  let parts = [];
  let left = MAX_DRAWN;

  function next() {
    if (container.drawing !== own) return;
    const begun = performance.now();
    if (!parts.length && piece.end < text.length) {
      piece = readPiece(text, piece.end, size);
      parts = portions(piece.tokens);
      if (piece.rest) container.append(asWritten(piece.rest));
    }
    const part = parts.shift();
    if (part) {
      left -= part.cost;
      container.append(drawPortion(part, piece.tokens, piece.lines, outline));
    }
    if (!parts.length && piece.end >= text.length) return;
    if (left > 0) setTimeout(() => setTimeout(next, performance.now() - begun)); // as long as it took to draw and lay out
    else container.append(rest());
  }

  function rest() {
    const button = el("button", { type: "button", class: "small more" }, "Show the rest");
    button.addEventListener("click", () => {
      left = MAX_DRAWN;
      button.remove();
      next();
    });
    return button;
  }

  next();
}
