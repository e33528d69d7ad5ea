// Markdown while it grows: blocks that have ended are built once, and only the last one again, at most once a frame.

import { build, codeBlock, parse, render, topBlocks } from "./markdown.js";

const MAX_LIVE = 60_000; // characters of a last block that is still drawn as markdown
const REFERENCES = /^ {0,3}\[[^\]\n]+\]: /m; // a definition that links above may need

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
  }

  /** Shows so much. @param {number} now of the frame; a costly frame is followed by a rest. */
  update(text, now = performance.now()) {
    if (text.length === this.text.length || now < this.notBefore) return;
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
      this.#replaceLive(build(parse(text.slice(this.done)), this.outline));
    } else this.container.replaceChildren(render(text));
  }

  #draw() {
    let tail = this.text.slice(this.done);
    if (tail.length > MAX_LIVE && this.live.length && !this.openCode) {
      this.#growPlain(tail);
      return;
    }
    const tokens = parse(tail);
    const blocks = topBlocks(tokens);
    if (blocks.length > 1) {
      const [index, line] = blocks.at(-1);
      this.#replaceLive(build(tokens.slice(0, index), this.outline));
      this.live = [];
      this.openCode = null;
      const offset = lineOffset(tail, line);
      this.done += offset;
      tail = tail.slice(offset);
      this.#drawLast(tokens.slice(index));
    } else this.#drawLast(tokens);
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

  /** A last block that is too long to be parsed each frame grows as plain text, until it ends. */
  #growPlain(tail) {
    if (this.plain === undefined || !this.plain.isConnected) {
      this.plain = document.createElement("p");
      this.plain.className = "plain";
      this.plain.append(document.createTextNode(""));
      this.plainFrom = this.done;
      this.#replaceLive([this.plain]);
    }
    const text = this.plain.firstChild;
    text.appendData(tail.slice(text.length + this.plainFrom - this.done));
  }

  #replaceLive(nodes) {
    const added = nodes instanceof DocumentFragment ? [...nodes.childNodes] : nodes;
    for (const node of this.live) node.remove();
    this.container.append(...added);
    this.live = added;
  }
}

function lineOffset(text, line) {
  let offset = 0;
  for (let passed = 0; passed < line; passed += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}
