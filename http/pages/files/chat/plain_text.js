// Text as it was written, however long: a part at a time.

import { count, el } from "../shared/dom.js";
import { SLICE, slices } from "./portions.js";

const SHOWN = 4; // slices at first, and with each press of the button
const HIDDEN = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/; // characters that turn the direction of what follows

export const hasHidden = (text) => HIDDEN.test(text);

/** Text with marks in place of characters that would turn its direction unseen. */
export function textNodes(text) {
  if (!HIDDEN.test(text)) return [document.createTextNode(text)];
  return text.split(/([\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c])/).filter(Boolean).map((part) => {
    if (!HIDDEN.test(part)) return document.createTextNode(part);
    const code = `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    return el("span", { class: "control", title: `a character that changes the direction of text (${code})` }, code);
  });
}

/** Nodes for a text; of a long one, its beginning and a button that shows more. */
export function longText(text) {
  if (text.length <= SLICE) return textNodes(text);
  const parts = slices(text);
  const next = () => parts.splice(0, SHOWN).map((part) => el("span", { class: "slice" }, ...textNodes(part)));
  const first = next();
  if (!parts.length) return first;
  const left = () => `Show more (${count(parts.reduce((sum, part) => sum + part.length, 0))} characters)`;
  const more = el("button", { type: "button", class: "small more" }, left());
  more.addEventListener("click", () => {
    const added = next();
    more.before(...added);
    if (parts.length) more.textContent = left();
    else {
      added[0].tabIndex = -1; // the reader goes on where the button was
      added[0].focus({ preventScroll: true });
      more.remove();
    }
  });
  return [...first, more];
}
