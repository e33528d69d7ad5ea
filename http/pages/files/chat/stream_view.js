// Markdown while it grows: blocks that have ended are built once, and only the last one again, at most once a frame.

import { build, codeBlock, parse, topBlocks } from "./markdown.js";
import { costOf, MAX_BLOCK, portions, slices } from "./portions.js";
import { drawPortion, drawWhole, lineOffset, REFERENCES } from "./whole_view.js";

const MAX_LIVE = 20_000; // characters that are drawn as markdown in a frame; a longer last block grows as plain text

export class StreamView {
  /** @param {Element} container whose content is this view's */
  constructor(container) {
    this.container = container;
    this.text = "";
    this.done = 0; // characters whose blocks are built for good
    this.live = []; // nodes of the last block
    this.outline = { level: 2 }; // at the end of what is built for good
    this.openCode = null; // the block of code that grows, if the last block is one
    this.notBefore = 0;
    this.isBehind = false; // there is more text than the last frame has drawn
  }

  /** Shows so much. @param {number} now of the frame; a costly frame is followed by a rest. */
  update(text, now = performance.now()) {
    if ((text.length === this.text.length && !this.isBehind) || now < this.notBefore) return;
    this.text = text;
    const begun = performance.now();
    this.#draw();
    const cost = performance.now() - begun;
    if (cost > 5) this.notBefore = now + 3 * cost;
  }

  /** The whole text, as it stays. */
  finish(text) {
    this.text = text;
    if (this.done > 0 && !REFERENCES.test(text)) {
      this.#replaceLive([]);
      drawWhole(this.container, text.slice(this.done), this.outline);
    } else {
      this.container.replaceChildren();
      drawWhole(this.container, text);
    }
  }

  #draw() {
    const tail = this.text.slice(this.done, this.done + MAX_LIVE);
    const isCut = this.done + MAX_LIVE < this.text.length;
    this.isBehind = false;
    if (isCut && this.plain?.isConnected) {
      this.#growPlain();
      return;
    }
    const tokens = parse(tail);
    const blocks = topBlocks(tokens);
    if (blocks.length < 2) {
      if (isCut || tokens.reduce((sum, token) => sum + costOf(token), 0) > MAX_BLOCK) this.#growPlain();
      else this.#drawLast(tokens);
      return;
    }
    const ended = tokens.slice(0, blocks.at(-1)[0]);
    const [first, second] = portions(ended);
    this.#replaceLive(drawPortion(first, ended, tail.split("\n"), this.outline));
    this.live = [];
    this.openCode = null;
    const [index, line] = second ? [second.from, second.line] : blocks.at(-1);
    this.done += lineOffset(tail, line);
    this.isBehind = second !== undefined || isCut;
    if (!this.isBehind) this.#drawLast(tokens.slice(index));
  }

  #drawLast(tokens) {
    const [first] = tokens;
    if (tokens.length === 1 && first.type === "fence") {
      const language = first.info.trim().split(/\s+/)[0] ?? "";
      if (this.openCode?.language === language && first.content.startsWith(this.openCode.block.source)) {
        const { block, text } = this.openCode;
        text.appendData(first.content.slice(block.source.length));
        block.source = first.content;
        return;
      }
      const block = codeBlock(first.content, language, { isOpen: true });
      this.#replaceLive([block]);
      this.openCode = { block, language, text: block.querySelector("code").firstChild };
      return;
    }
    this.openCode = null;
    this.#replaceLive(build(tokens, { ...this.outline }));
  }

  /** A last block that is too long to be parsed each frame grows as plain text, until the answer ends. */
  #growPlain() {
    if (!this.plain?.isConnected) {
      this.plain = document.createElement("div");
      this.plain.className = "plain";
      this.plainTo = this.done;
      this.#replaceLive([this.plain]);
    }
    for (const part of slices(this.text.slice(this.plainTo))) {
      const span = document.createElement("span");
      span.append(part);
      this.plain.append(span);
    }
    this.plainTo = this.text.length;
  }

  #replaceLive(nodes) {
    const added = nodes instanceof DocumentFragment ? [...nodes.childNodes] : nodes;
    for (const node of this.live) node.remove();
    this.container.append(...added);
    this.live = added;
  }
}
