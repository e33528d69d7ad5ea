// How much of a text is drawn in one go, so that the page answers meanwhile. A cost of 1 is about 10 µs of a browser that
// makes and lays out elements; measured on a laptop, a formula takes 0.8 ms, and a character of a long line 2 µs.

export const AT_ONCE = 5_000; // what is drawn before others have their turn
export const MAX_BLOCK = 10_000; // a block of the top level that costs more is shown as it was written
export const MAX_DRAWN = 100_000; // of a message; more is drawn when the reader asks for it
export const SLICE = 8_000; // characters of plain text that the browser lays out together

const FORMULA = 80;
const PER_CHARACTER = 0.2;
const OF_KIND = new Map(Object.entries({ fence: 30, code_block: 30, link_open: 5, table_open: 5 })); // beyond 1

const ofInline = (token) => 1 + (OF_KIND.get(token.type) ?? 0) + token.content.length * (token.type === "math" ? 1 : PER_CHARACTER) + (token.type === "math" ? FORMULA : 0);

/** @param {object} token markdown-it's, of a block */
export function costOf(token) {
  if (token.type === "inline") return token.children.reduce((sum, child) => sum + ofInline(child), 1);
  if (token.type === "math_block") return FORMULA + token.content.length;
  return 1 + (OF_KIND.get(token.type) ?? 0) + token.content.length * PER_CHARACTER;
}

/**
 * Blocks of the top level, in groups that are drawn in one go.
 * @param {object[]} tokens markdown-it's
 * @returns {{from: number, to: number, line: number, end: number, cost: number, isPlain: boolean}[]} tokens and lines
 */
export function portions(tokens) {
  const found = [];
  let from = 0;
  while (from < tokens.length) {
    let to = from;
    let cost = 0;
    do {
      cost += costOf(tokens[to]);
      to += 1;
    } while (to < tokens.length && (tokens[to].level > 0 || tokens[to].nesting < 0));
    const [line, end] = tokens[from].map;
    const last = found.at(-1);
    const isPlain = cost > MAX_BLOCK;
    if (last && !isPlain && !last.isPlain && last.cost + cost <= AT_ONCE) Object.assign(last, { to, end, cost: last.cost + cost });
    else found.push({ from, to, line, end, cost: isPlain ? AT_ONCE : cost, isPlain });
    from = to;
  }
  return found;
}

/** Plain text in slices, cut at the end of a line where there is one. A line break at the end of a slice is left out. */
export function slices(text) {
  const found = [];
  let from = 0;
  while (from < text.length) {
    let to = Math.min(from + SLICE, text.length);
    const lineBreak = to < text.length ? text.slice(from, to + 1).lastIndexOf("\n") : -1;
    if (lineBreak > 0) {
      found.push(text.slice(from, from + lineBreak));
      from += lineBreak + 1;
      continue;
    }
    if (to < text.length && /[\ud800-\udbff]/.test(text[to - 1])) to += 1; // no character in two halves
    found.push(text.slice(from, to));
    from = to;
  }
  return found;
}
