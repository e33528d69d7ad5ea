// Asks the server again and again: once a second while the page is seen, more and more rarely while nothing answers.

import { ApiError, ask } from "../shared/api.js";

const EVERY = 1000; // milliseconds
const MOST = 15_000;
const RARELY = 3; // maps and batches come with each so many answers

export class Poller {
  /**
   * @param {() => {since: number, pages: boolean}} wanted
   * @param {(data: any) => void} onData
   * @param {(error: ApiError, wait: number) => void} onError wait: milliseconds until the next attempt; null: none
   */
  constructor(wanted, onData, onError) {
    this.wanted = wanted;
    this.onData = onData;
    this.onError = onError;
    this.failures = 0;
    this.number = 0;
    this.timer = null;
    this.isPaused = false;
    document.addEventListener("visibilitychange", () => this.#turn());
    addEventListener("online", () => this.#turn());
  }

  start() {
    this.isStopped = false;
    this.#turn();
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.#turn();
  }

  /** Asks at once, with all that is asked for rarely. */
  hurry() {
    this.number = 0;
    this.#turn();
  }

  #turn() {
    clearTimeout(this.timer);
    if (document.hidden || this.isPaused || this.isStopped || this.isAsking) return;
    this.#ask();
  }

  async #ask() {
    this.isAsking = true;
    const { since, pages } = this.wanted();
    const isRare = this.number % RARELY === 0;
    const query = new URLSearchParams({ since, pages: isRare && pages, batches: isRare });
    const abort = AbortSignal.timeout(MOST);
    let wait = EVERY;
    try {
      const data = await ask(`dashboard/data?${query}`, { signal: abort });
      this.failures = 0;
      this.number += 1;
      this.onData(data);
    } catch (problem) {
      const error = problem instanceof ApiError ? problem : problem?.name === "TimeoutError" || problem?.name === "AbortError" ? new ApiError("The server does not answer.") : null;
      if (error === null) throw problem;
      this.failures += 1;
      this.number = 0;
      const isFinal = error.status === 401 || error.status === 403 || error.status === 404;
      wait = isFinal ? null : Math.min(MOST, EVERY * 2 ** (this.failures - 1));
      this.isStopped = isFinal;
      this.onError(error, wait);
    } finally {
      this.isAsking = false;
    }
    if (wait !== null) this.timer = setTimeout(() => this.#turn(), wait);
  }
}
