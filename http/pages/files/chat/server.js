// What the server is and has: its models, what they can do, and whether it answers at present.

import { address, ApiError, ask } from "../shared/api.js";

const CALM = 20_000; // milliseconds between two looks while all is well
const BUSY = 1_500; // and while it is not

const words = { draining: "shutting down", released: "asleep", dead: "stopped" }; // other states are words already

export class Server {
  /** @param {(state: string) => void} onState is told "ready", or in a word or two what else it is */
  constructor(onState) {
    this.onState = onState;
    this.state = null;
    this.models = [];
    this.capabilities = null;
    this.waiters = [];
    this.#watch();
    addEventListener("online", () => this.wake?.());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake?.());
  }

  async #watch() {
    for (;;) {
      await this.#look();
      const isCalm = this.state === "ready" && !this.waiters.length;
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, isCalm ? CALM : BUSY);
      });
    }
  }

  /** Looks whether the server answers; no key is needed for that. */
  async #look() {
    if (document.hidden && !this.waiters.length && this.state !== null) return;
    let state;
    try {
      const answer = await fetch(address("ready"), { cache: "no-store", signal: AbortSignal.timeout(10_000) });
      const told = await answer.json().catch(() => ({}));
      state = answer.ok ? "ready" : described(told);
    } catch {
      state = "not reachable";
    }
    this.#set(state);
  }

  #set(state) {
    if (state === "ready") this.waiters.splice(0).forEach((resolve) => resolve());
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }

  /** A request has failed for want of an engine: look at once. */
  suspect() {
    this.wake?.();
  }

  /** Resolves when the server is ready. @throws {DOMException} AbortError */
  async whenReady(signal) {
    await new Promise((resolve, reject) => {
      this.waiters.push(resolve);
      signal.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError")), { once: true });
      this.wake?.();
    });
  }

  /** Models and what they can do. @throws {ApiError} */
  async load() {
    this.models = (await ask("v1/models")).data ?? [];
    try {
      this.capabilities = await ask("v1/capabilities");
    } catch (error) {
      if (!(error instanceof ApiError) || error.status === 401) throw error;
      this.capabilities = null; // an older server, or a proxy that hides it: only text is offered
    }
  }

  takes(kind) {
    return (this.capabilities?.modalities?.input ?? ["text"]).includes(kind);
  }

  get writesText() {
    return (this.capabilities?.modalities?.output ?? ["text"]).includes("text") && this.capabilities?.chat_template !== false;
  }

  /** What to send where the settings are empty: nothing, if the model's files say how to sample. */
  get sampling() {
    return this.capabilities?.chat_sampling_params ?? {};
  }

  /** Tokens of prompt and answer together; null: not known. */
  contextOf(model) {
    return this.models.find(({ id }) => id === model)?.max_model_len ?? this.capabilities?.max_model_len ?? null;
  }
}

function described({ state, phase, done, total }) {
  const word = words[state] ?? state ?? "not ready";
  const what = {
    device: "waiting for the device",
    download: "downloading",
    load: "loading weights",
    compile: "compiling",
  }[phase];
  return total && what ? `${word}: ${what}, ${Math.floor((100 * done) / total)} %` : word;
}
