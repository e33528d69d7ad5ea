// Answers under way: at most one a conversation, also of those that are not shown.

import { stream } from "./answer.js";
import { bodyOf, SettingsError } from "./body.js";
import { picturesOf } from "./files.js";
import { preferences } from "./store.js";
import { ApiError, ask } from "../shared/api.js";

const SAVE_EVERY = 3000; // milliseconds
const MAX_EXPLANATION = 256 << 10; // characters of an explanation that is stored with its message

export class Answers {
  /**
   * @param {import("./conversations.js").Conversations} conversations
   * @param {import("./server.js").Server} server
   * @param {{onBegin, onFrame, onWait, onEnd}} told of a run, and of each frame in which it has grown
   */
  constructor(conversations, server, told) {
    Object.assign(this, { conversations, server, told });
    this.runs = new Map(); // conversation id → run
  }

  isBusy(id) {
    return this.runs.has(id);
  }

  /** Ends what runs in a conversation; what has come stays. */
  stop(id) {
    this.runs.get(id)?.controller.abort();
  }

  /**
   * Lets the model answer.
   * @param {object} message an empty one of the assistant, the last of the path; or one that goes on
   */
  async run(conversation, message, { continues = false } = {}) {
    const run = { conversation, message, controller: new AbortController(), isDirty: false, saved: performance.now() };
    this.runs.set(conversation.id, run);
    const { signal } = run.controller;
    delete message.error;
    delete message.finish;
    this.told.onBegin(run);
    try {
      const path = this.conversations.trees.get(conversation.id).path(continues ? message.id : message.parent);
      const { timeline, probabilities } = preferences.read();
      const settings = { ...conversation.settings, timeline, probabilities };
      const body = bodyOf(path, settings, { model: message.model, pictures: await picturesOf(path), continues, sampling: this.server.sampling });
      await this.#ask(run, body, signal);
    } catch (error) {
      this.#failed(message, error);
    }
    this.runs.delete(conversation.id);
    await this.conversations.save(conversation, [message]);
    this.told.onEnd(run);
    if (preferences.read().timeline && message.requestId) await this.explain(message).catch(() => {});
  }

  /** Asks until the engine is there. Once something has come, an engine that goes away ends the answer. */
  async #ask(run, body, signal) {
    const { message } = run;
    const before = message.content.length;
    for (;;) {
      try {
        await stream(body, message, { signal, onChange: () => this.#grown(run) });
        return;
      } catch (error) {
        const isUntouched = message.content.length === before && !message.thinking && !message.calls;
        if (!(error instanceof ApiError && error.isTemporary && isUntouched)) throw error;
        this.server.suspect();
        this.told.onWait(run, `${error.message} Your message is sent as soon as the server is ready.`);
        await this.server.whenReady(signal);
        this.told.onWait(run, "Waiting for the first token…");
        await new Promise((resolve) => setTimeout(resolve, 300));
      }
    }
  }

  #failed(message, error) {
    if (error.name === "AbortError") {
      message.finish = "stopped";
      return;
    }
    if (!(error instanceof ApiError || error instanceof SettingsError)) console.error(error);
    message.error = { message: error.message };
    if (error instanceof ApiError && error.isTemporary) this.server.suspect();
  }

  #grown(run) {
    if (!run.isDirty) {
      run.isDirty = true;
      requestAnimationFrame((now) => {
        run.isDirty = false;
        if (this.runs.get(run.conversation.id) === run) this.told.onFrame(run, now);
      });
    }
    const now = performance.now();
    if (now - run.saved > SAVE_EVERY) {
      run.saved = now;
      this.conversations.save(run.conversation, [run.message], { isQuiet: true });
    }
  }

  /** The server's explanation of an answer. @throws {ApiError} it has none any more */
  async explain(message) {
    if (message.explanation) return message.explanation;
    const found = await ask(`v1/requests/${encodeURIComponent(message.requestId)}/explain`);
    message.explanation = found;
    const conversation = this.conversations.all.find(({ id }) => id === message.conversation);
    if (conversation && JSON.stringify(found).length <= MAX_EXPLANATION) await this.conversations.save(conversation, [message], { isQuiet: true });
    return found;
  }
}
