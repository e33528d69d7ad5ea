// One message as an element: what it says, what the model thought, what it calls, and what can be done with it.

import { count, el, icon, iconButton } from "../shared/dom.js";
import { longText } from "./plain_text.js";
import { SLICE } from "./portions.js";
import { StreamView } from "./stream_view.js";
import { drawTokens } from "./tokens.js";
import { drawWhole, MAX_MARKDOWN } from "./whole_view.js";

const MAX_PRETTY = 100_000; // characters of arguments that are indented
const NAMES = { user: "You", assistant: "Assistant", tool: "Result of a tool" };

/** Actions are buttons with `data-action`; whoever shows the message listens. */
function action(name, drawing, label, props = {}) {
  return iconButton(drawing, label, null, { "data-action": name, ...props });
}

export class MessageView {
  /**
   * @param {object} message
   * @param {{siblings: string[], canContinue: boolean}} place
   */
  constructor(message, place) {
    this.message = message;
    this.place = place;
    this.element = el("article", { class: `message ${message.role}`, "data-id": message.id });
    this.isDrawn = false;
    this.stream = null;
    this.sketch();
  }

  /** Only its text: cheap, found by the browser's search, and read by screen readers. */
  sketch() {
    this.isDrawn = false;
    this.element.classList.add("sketch");
    this.element.replaceChildren(this.#title(), el("div", { class: "content plain" }, this.message.content.slice(0, SLICE) || "…"));
  }

  draw() {
    if (this.isDrawn) return;
    this.isDrawn = true;
    this.element.classList.remove("sketch");
    const { message } = this;
    this.content = el("div", { class: "content" });
    this.thinking = null;
    this.calls = el("div", { class: "calls" });
    this.footer = el("div", { class: "footer" });
    this.element.replaceChildren(this.#title(), ...this.#files(), this.content, this.calls, this.footer);
    if (message.role === "assistant") this.#drawAnswer();
    else {
      this.content.classList.add("plain");
      this.content.dir = "auto";
      this.content.replaceChildren(...longText(message.content));
      if (message.role === "tool") this.content.setAttribute("tabindex", "0");
    }
    this.#drawCalls();
    this.#drawError();
    this.drawFooter();
  }

  #drawAnswer() {
    const { message } = this;
    if (message.thinking) this.#showThinking();
    this.content.replaceChildren();
    drawWhole(this.content, message.content);
  }

  #title() {
    const model = this.message.role === "assistant" && this.message.model ? `, ${this.message.model}` : "";
    return el("h2", { class: "visually-hidden" }, `${NAMES[this.message.role]}${model}`);
  }

  #files() {
    const { files } = this.message;
    if (!files?.length) return [];
    const shown = files.map((file) => {
      if (file.blob) {
        const address = URL.createObjectURL(file.blob);
        return el("img", { src: address, alt: file.name, class: "picture-file", onload: () => URL.revokeObjectURL(address) });
      }
      return el("details", { class: "text-file" }, el("summary", {}, file.name), el("pre", { tabindex: "0" }, ...longText(file.text)));
    });
    return [el("div", { class: "files" }, ...shown)];
  }

  /** Begins to show an answer that arrives. */
  begin() {
    this.draw();
    this.element.classList.add("streaming");
    this.content.replaceChildren();
    this.stream = new StreamView(this.content);
    this.waiting = el("p", { class: "waiting" }, el("span", { class: "dots", "aria-hidden": "true" }), el("span", { class: "why" }, "Waiting for the first token…"));
    this.content.before(this.waiting);
    this.drawFooter();
  }

  /** Why nothing comes yet. */
  wait(reason) {
    if (this.waiting) this.waiting.querySelector(".why").textContent = reason;
  }

  /** What has come since the last frame. */
  frame(now) {
    const { message } = this;
    if (this.waiting && (message.content || message.thinking || message.calls)) {
      this.waiting.remove();
      this.waiting = null;
    }
    if (message.thinking) this.#showThinking(!message.content && message.thinkingSeconds === undefined);
    if (message.content.length <= MAX_MARKDOWN) this.stream.update(message.content, now);
    if (message.calls && now - (this.callsAt ?? 0) > 200) {
      this.callsAt = now;
      this.#drawCalls();
    }
  }

  end() {
    this.element.classList.remove("streaming");
    this.waiting?.remove();
    this.waiting = null;
    if (this.stream && this.message.content.length <= MAX_MARKDOWN) {
      if (this.message.thinking) this.#showThinking();
      this.stream.finish(this.message.content);
    } else this.#drawAnswer();
    this.stream = null;
    if (this.thinking) this.#fillThinking();
    this.#drawCalls();
    this.#drawError();
    this.drawFooter();
  }

  #showThinking(isNow = false) {
    const { message } = this;
    if (!this.thinking) {
      const text = el("div", { class: "thinking-text plain", tabindex: "0", role: "group", "aria-label": "Thinking", dir: "auto" });
      this.thinking = el("details", { class: "thinking" }, el("summary", {}, icon("chevron"), el("span", { class: "thinking-title" })), text);
      this.thinking.addEventListener("toggle", () => this.#fillThinking());
      this.content.before(this.thinking);
    }
    const seconds = message.thinkingSeconds;
    const title = isNow ? "Thinking…" : seconds === undefined || seconds < 0.1 ? "Thoughts" : `Thought for ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    const shown = this.thinking.querySelector(".thinking-title");
    if (shown.textContent !== title) shown.textContent = title;
    this.thinking.classList.toggle("now", isNow);
    this.#fillThinking();
  }

  /** Folded thoughts cost nothing. */
  #fillThinking() {
    if (!this.thinking.open) return;
    const text = this.thinking.querySelector(".thinking-text");
    const { thinking } = this.message;
    const shown = this.thinkingLength ?? 0;
    if (thinking.length > SLICE) {
      if (!this.stream || shown <= SLICE) text.replaceChildren(...longText(thinking));
    } else if (text.firstChild === null || shown > thinking.length) text.replaceChildren(document.createTextNode(thinking));
    else text.firstChild.appendData(thinking.slice(shown));
    this.thinkingLength = thinking.length;
  }

  #drawCalls() {
    const { calls, role } = this.message;
    if (role !== "assistant" || !calls?.length) return;
    this.calls.replaceChildren(
      ...calls.map((call, index) =>
        el(
          "section",
          { class: "call", "aria-label": `Tool call: ${call.name}` },
          el("p", { class: "call-name" }, icon("tool"), el("code", {}, call.name || "…")),
          el("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, ...longText(pretty(call.arguments))),
          this.stream || this.place.hasResult?.(call.id)
            ? null
            : el(
                "form",
                { class: "call-result", "data-call": String(index) },
                el("label", {}, el("span", { class: "visually-hidden" }, `Result of ${call.name}`), el("textarea", { rows: "1", placeholder: "Write the tool's result, and the model goes on", name: "result" })),
                el("button", { type: "submit", class: "small" }, "Send result"),
              ),
        ),
      ),
    );
  }

  #drawError() {
    this.element.querySelector(".error")?.remove();
    const { error } = this.message;
    if (!error) return;
    this.footer.before(el("p", { class: "error", role: "alert" }, error.message));
  }

  drawFooter() {
    const { message, place } = this;
    if (!this.isDrawn) return;
    const buttons = el("div", { class: "actions" });
    const { siblings } = place;
    if (siblings.length > 1) {
      const at = siblings.indexOf(message.id);
      buttons.append(
        el(
          "span",
          { class: "branches" },
          action("previous", "back", "Previous version", { disabled: at === 0 }),
          el("span", { class: "branch-place" }, el("span", { class: "visually-hidden" }, "Version "), `${at + 1}/${siblings.length}`),
          action("next", "forward", "Next version", { disabled: at === siblings.length - 1 }),
        ),
      );
    }
    if (!this.stream) {
      buttons.append(action("copy", "copy", "Copy"));
      if (message.role !== "tool") buttons.append(action("edit", "edit", "Edit"));
      if (message.role === "assistant") {
        buttons.append(action("retry", "retry", "Another answer"));
        if (place.canContinue && (message.finish === "length" || message.finish === "stopped" || message.error) && message.content && !message.calls) {
          buttons.append(action("continue", "play", "Continue this answer"));
        }
        if (message.requestId) buttons.append(action("timeline", "timeline", "Timeline", { "aria-expanded": "false" }));
      }
      buttons.append(action("delete", "trash", "Delete"));
    }
    const facts = el("p", { class: "facts" }, this.facts());
    this.footer.replaceChildren(buttons, facts);
    if (message.tokens?.length && !this.stream) {
      const held = el("details", { class: "tokens" }, el("summary", {}, "Token probabilities"));
      held.addEventListener("toggle", () => held.children.length < 2 && held.append(drawTokens(message.tokens)), { once: true });
      this.footer.append(held);
    }
  }

  /** Figures in a line. */
  facts() {
    const { role, usage, speed, finish, seconds, thinking, content, calls } = this.message;
    if (role !== "assistant") return "";
    const parts = [];
    if (usage) parts.push(`${count(usage.completion_tokens)} tokens`);
    if (speed) parts.push(`${speed < 10 ? speed.toFixed(1) : count(Math.round(speed))} tokens/s`);
    if (seconds >= 0.1) parts.push(`${seconds.toFixed(1)} s`);
    if (finish && finish !== "stopped" && thinking && !content && !calls) parts.push("no answer after the thoughts");
    if (finish === "length") parts.push("cut off at the most tokens");
    if (finish === "stopped") parts.push("stopped");
    return parts.join(" · ");
  }
}

function pretty(text) {
  if (text.length > MAX_PRETTY) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
