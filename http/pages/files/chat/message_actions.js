// What the buttons of a message do.

import { el } from "../shared/dom.js";
import { ApiError } from "../shared/api.js";
import { confirmed, notice } from "./dialogs.js";
import { drawTimeline } from "./timeline.js";

/** Puts a text on the clipboard; says so on the button, and to screen readers. */
export async function copyText(text, button, announcer) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "visually-hidden" }); // without HTTPS there is no clipboard but this one
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  announcer.say("Copied.");
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1500);
}

export class MessageActions {
  /** @param {object} page has conversations, answers, thread, announcer; `show()` and `answer(parent)` */
  constructor(page) {
    this.page = page;
    const { list } = page.thread;
    list.addEventListener("click", (event) => this.#click(event));
    list.addEventListener("submit", (event) => this.#submit(event));
    list.addEventListener("keydown", (event) => event.key === "Escape" && event.target.closest(".editor") && this.#endEdit(event));
  }

  #click(event) {
    const button = event.target.closest("button");
    const view = button && this.page.thread.viewOf(button);
    if (!view) return;
    if (button.dataset.copies === "code") copyText(button.closest(".code").source, button, this.page.announcer);
    const name = button.dataset.action;
    if (name) this[name](view, button);
  }

  copy(view, button) {
    copyText(view.message.content, button, this.page.announcer);
  }

  async #switch(view, step) {
    const { conversations, thread } = this.page;
    const { tree, current } = conversations;
    const siblings = tree.siblings(view.message.id);
    const id = siblings[siblings.indexOf(view.message.id) + step];
    current.active = tree.newestLeaf(id);
    await conversations.save(current);
    this.page.show();
    const shown = thread.view(id);
    shown?.draw();
    shown?.element.querySelector(`[data-action=${step < 0 ? "previous" : "next"}]:enabled, .branches button:enabled`)?.focus();
  }

  previous(view) {
    return this.#switch(view, -1);
  }

  next(view) {
    return this.#switch(view, 1);
  }

  retry(view) {
    return this.page.answer(view.message.parent);
  }

  continue(view) {
    return this.page.resume(view.message);
  }

  async delete(view) {
    const { conversations, answers } = this.page;
    if (answers.isBusy(conversations.current.id)) return;
    if (!(await confirmed("Delete this message?", "What follows it in this branch is deleted, too.", "Delete"))) return;
    await conversations.removeMessage(view.message.id);
    this.page.show();
  }

  /** The text in a box; what was there stays as another branch. */
  edit(view) {
    if (view.element.querySelector(".editor")) return;
    const isUser = view.message.role === "user";
    const area = el("textarea", { rows: "3", dir: "auto", "aria-label": "Edit the message" });
    area.value = view.message.content;
    const editor = el(
      "form",
      { class: "editor" },
      area,
      el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, isUser ? "Send" : "Save"), el("button", { type: "button", class: "quiet", "data-action": "cancelEdit" }, "Cancel")),
    );
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.requestSubmit();
    });
    view.content.hidden = view.footer.hidden = true;
    view.content.after(editor);
    area.rows = Math.min(20, Math.max(3, area.value.split("\n").length + 1));
    area.focus();
  }

  cancelEdit(view) {
    view.element.querySelector(".editor")?.remove();
    view.content.hidden = view.footer.hidden = false;
    view.element.querySelector("[data-action=edit]")?.focus();
  }

  #endEdit(event) {
    event.stopPropagation();
    this.cancelEdit(this.page.thread.viewOf(event.target));
  }

  async #submit(event) {
    event.preventDefault();
    const view = this.page.thread.viewOf(event.target);
    const text = event.target.querySelector("textarea").value.trim();
    const { conversations, answers } = this.page;
    if (!text || answers.isBusy(conversations.current.id)) return;
    if (event.target.matches(".call-result")) {
      await this.#result(view, Number(event.target.dataset.call), text);
      return;
    }
    const { message } = view;
    const { files, parent, role, model } = message;
    if (text === message.content && role !== "user") {
      this.cancelEdit(view);
      return;
    }
    const made = await conversations.add({ role, parent, content: text, ...(files && { files }), ...(role === "assistant" && { model, finish: "stop" }) });
    if (role === "user") await this.page.answer(made.id);
    else this.page.show();
    this.page.composer.focus();
  }

  /** The user plays the tool. When each call has its result, the model goes on. */
  async #result(view, index, text) {
    const { conversations } = this.page;
    const { calls, id } = view.message;
    const call = calls[index];
    const before = conversations.path;
    const parent = before.at(-1).role === "tool" ? before.at(-1).id : id;
    const made = await conversations.add({ role: "tool", parent, content: text, callId: call.id, name: call.name });
    const answered = new Set(conversations.path.filter(({ role }) => role === "tool").map(({ callId }) => callId));
    if (calls.every((each) => answered.has(each.id))) await this.page.answer(made.id);
    else this.page.show();
    view.calls.replaceChildren();
    view.isDrawn = false;
    view.draw();
  }

  async timeline(view, button) {
    const open = view.element.querySelector(".timeline");
    if (open) {
      open.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    button.disabled = true;
    try {
      await this.showTimeline(view);
      button.setAttribute("aria-expanded", "true");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      notice(error.status === 404 ? "The server has forgotten this answer: it keeps only the last ones." : error.message);
    } finally {
      button.disabled = false;
    }
  }

  /** @throws {ApiError} */
  async showTimeline(view) {
    const explanation = await this.page.answers.explain(view.message);
    view.element.querySelector(".timeline")?.remove();
    view.footer.before(el("section", { class: "timeline", "aria-label": "Timeline" }, drawTimeline(explanation)));
    view.element.querySelector("[data-action=timeline]")?.setAttribute("aria-expanded", "true");
    this.page.thread.follow();
  }
}
