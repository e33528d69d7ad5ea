// The dashboard: asks the server for its figures, and puts them into tiles, charts, maps and tables.

import { askText, confirmed, notice } from "../chat/dialogs.js";
import { preferences } from "../chat/store.js";
import { ApiError, ask, onKeyNeeded, setApiKey } from "../shared/api.js";
import { count, el, icon, wireSkipLink } from "../shared/dom.js";
import { Chart } from "./chart.js";
import { duration, percent, seconds, short, whole } from "./format.js";
import { PageMapView } from "./page_map.js";
import { Poller } from "./poller.js";
import { Series } from "./series.js";
import { Batches, Buckets, Drafts, Errors, Memory, Model, Programs, Ranks } from "./tables.js";

const $ = (id) => document.getElementById(id);
const STATES = { ready: "serving", starting: "starting", restarting: "restarting", released: "memory released", draining: "shutting down", dead: "failed", unresponsive: "not responding" };

const TILES = [
  ["running", "Running", ({ engine, server }) => [whole(engine?.running), server.limits && `of ${count(server.limits.max_running_requests)}`]],
  ["waiting", "Waiting", ({ engine }) => [whole(engine?.waiting), engine?.retracted ? `${count(engine.retracted)} retracted` : ""]],
  ["tokens_out", "Tokens/s out", ({ recent }) => [short(recent("tokens_out")), ""]],
  ["tokens_in", "Tokens/s in", ({ recent }) => [short(recent("tokens_in")), recent("tokens_found") ? `+ ${short(recent("tokens_found"))} cached` : ""]],
  ["ttft", "First token", ({ series }) => [seconds(series.now("ttft_p50")), series.now("ttft_p95") === null ? "" : `95 %: ${seconds(series.now("ttft_p95"))}`]],
  ["itl", "Between tokens", ({ series }) => [seconds(series.now("itl_p50")), series.now("itl_p95") === null ? "" : `95 %: ${seconds(series.now("itl_p95"))}`]],
  ["cache", "KV cache in use", ({ engine }) => [engine ? percent(engine.total_tokens ? engine.used_tokens / engine.total_tokens : null) : "–", engine ? `${short(engine.cached_tokens)} cached` : ""]],
  ["hits", "Cache hits", ({ engine }) => [engine?.cache_enabled ? percent(engine.hit_rate) : engine ? "off" : "–", engine?.cache_enabled ? "since the start" : ""]],
];

const CHARTS = [
  new Chart("Requests", [["running", "running"], ["waiting", "waiting"], ["retracted", "retracted"]], short),
  new Chart("Tokens per second", [["tokens_out", "out"], ["tokens_in", "in, computed"], ["tokens_found", "in, from the cache"]], short),
  new Chart("Time to first token", [["ttft_p50", "median"], ["ttft_p95", "95 %"], ["ttft_p99", "99 %"]], seconds, { note: "Of the last ten seconds." }),
  new Chart("Time between tokens", [["itl_p50", "median"], ["itl_p95", "95 %"], ["itl_p99", "99 %"]], seconds, { note: "Of the last ten seconds." }),
  new Chart("Tokens in the KV cache", [["used_tokens", "of running requests"], ["cached_tokens", "in the prefix cache"]], short),
  new Chart("Shares", [["hit_rate", "prefix cache hits"], ["padding", "padding"], ["idle", "device idle"], ["accept_rate", "right drafts"]], percent, { most: 1, optional: ["accept_rate"] }),
  new Chart("Requests ended per second", [["requests", "all"], ["aborted", "early"], ["answers_4xx", "refused (4xx)"], ["answers_5xx", "failed (5xx)"]], short),
];

class Dashboard {
  constructor() {
    this.series = new Series();
    this.range = Number(preferences.read().range) || 300;
    this.pages = new PageMapView();
    this.batches = new Batches((batch) => this.#cancel(batch));
    this.ofEngine = [new Ranks(), new Drafts(), new Buckets(), new Programs(), new Memory()];
    this.model = new Model();
    this.errors = new Errors();
    this.#build();
    this.poller = new Poller(
      () => ({ since: this.series.last, pages: this.pages.isSeen }),
      (data) => this.#show(data),
      (error, wait) => this.#failed(error, wait),
    );
    onKeyNeeded((wasWrong) => this.#askKey(wasWrong ? "The server does not take this key." : "The dashboard of this server asks for a key: the admin key, if it has one. This tab keeps it until it is closed."));
  }

  #build() {
    this.tiles = new Map();
    for (const [id, label] of TILES) {
      const value = el("dd", { class: "value" }, "–");
      const note = el("dd", { class: "note" });
      this.tiles.set(id, { value, note });
      $("tiles").append(el("div", { class: "tile", id: `tile-${id}` }, el("dt", {}, label), value, note));
    }
    const [ranks, drafts, buckets, programs, memory] = this.ofEngine.map(({ node }) => node);
    $("cards").append(...CHARTS.map(({ node }) => node), this.model.node, this.pages.node, ranks, this.batches.node, buckets, programs, memory, drafts, this.errors.node);
    for (const button of $("range").querySelectorAll("input")) {
      button.checked = Number(button.value) === this.range;
      button.addEventListener("change", () => this.#setRange(Number(button.value)));
    }
    $("pause").addEventListener("click", () => this.#pause());
    $("theme").addEventListener("click", () => this.#turnTheme());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#theme());
    wireSkipLink();
    this.#theme();
    this.#pause(false);
  }

  start() {
    this.poller.start();
  }

  #show(data) {
    if (this.started !== undefined && this.started !== data.server.started) {
      this.series.clear(); // another server
      this.poller.hurry();
    } else {
      this.series.add(data.history);
    }
    this.started = data.server.started;
    this.#state(data);
    const facts = { ...data, series: this.series, recent: (name) => this.#mean(name) };
    for (const [id, , read] of TILES) {
      const [value, note] = read(facts);
      const tile = this.tiles.get(id);
      if (tile.value.textContent !== value) tile.value.textContent = value;
      tile.note.textContent = note || "";
    }
    this.#draw();
    for (const each of this.ofEngine) each.show(data.engine);
    this.model.show(data);
    this.pages.show(data.pages);
    this.batches.show(data.batches);
    this.errors.show(data.errors);
    document.body.classList.remove("lost");
    $("cards").hidden = false;
    $("trouble").hidden = true;
  }

  /** Of the last three seconds: a single one jumps about. */
  #mean(name) {
    const known = (this.series.columns[name] ?? []).slice(-3).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  }

  #state({ server, time }) {
    const { progress } = server;
    let words = STATES[server.state] ?? server.state;
    if (progress) words += ` (${progress.phase === "load" ? "loading weights" : "compiling programs"}: ${count(progress.done)} of ${count(progress.total)})`;
    else if (server.state === "ready") words += ` for ${duration(time - server.started)}`;
    this.#say(words, server.state === "ready" ? "good" : "bad");
    $("model").textContent = server.model;
    $("model").title = server.model;
    $("why").textContent = server.failure ?? server.busy ?? "";
    $("why").hidden = !(server.failure ?? server.busy);
  }

  /** The state; screen readers are told when it is another one, not every second. */
  #say(words, kind) {
    const kindBefore = $("state").dataset.kind;
    $("state-text").textContent = words;
    $("state").dataset.kind = kind;
    const plain = words.replace(/ for .*$/, "");
    if (kindBefore !== kind || this.said !== plain.split(" (")[0]) {
      this.said = plain.split(" (")[0];
      $("announcer").textContent = `Server: ${plain}`;
    }
  }

  #draw() {
    for (const chart of CHARTS) chart.show(this.series.recent(this.range, chart.names));
  }

  #failed(error, wait) {
    document.body.classList.add("lost");
    const isRight = error.code === "admin_key_required";
    if (wait !== null) {
      this.#say(`no answer; next attempt in ${Math.round(wait / 1000)} s`, "bad");
      return;
    }
    this.#say("not allowed to look", "bad");
    const text = error.status === 404 ? "This server has no dashboard." : error.message;
    const again = el("button", { type: "button", class: "primary", onclick: () => this.#again(isRight) }, isRight ? "Use another key" : "Enter the key");
    $("trouble").replaceChildren(el("p", {}, text), ...(error.status === 404 ? [] : [again]));
    $("trouble").hidden = false;
    $("cards").hidden = true;
  }

  /** @param {boolean} isRight the key is one of this server's, but not the admin's */
  async #again(isRight) {
    if (isRight) {
      const key = await this.#askKey("The key of this tab may use the API, but not look at the dashboard. Enter the admin key.");
      if (key === null) return;
      setApiKey(key);
    }
    $("trouble").hidden = true;
    this.poller.start();
  }

  #askKey(hint) {
    return askText("API key", "Key", "", { type: "password", hint, button: "Continue" });
  }

  async #cancel(batch) {
    if (!(await confirmed("Cancel this batch?", `Lines of ${batch.id} that have no result yet will get none.`, "Cancel the batch"))) return;
    try {
      await ask(`v1/batches/${encodeURIComponent(batch.id)}/cancel`, { method: "POST", json: {} });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      notice(error.message);
    }
    this.poller.hurry();
  }

  #setRange(range) {
    this.range = range;
    preferences.write({ range });
    this.#draw();
  }

  #pause(isPaused = !this.isPaused) {
    this.isPaused = isPaused;
    const label = isPaused ? "Go on" : "Pause";
    $("pause").replaceChildren(icon(isPaused ? "play" : "stop"));
    $("pause").setAttribute("aria-label", label);
    $("pause").title = label;
    this.poller?.pause(isPaused);
  }

  #theme() {
    const { theme = "" } = preferences.read();
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    this.isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const label = this.isDark ? "Light theme" : "Dark theme";
    $("theme").replaceChildren(icon(this.isDark ? "sun" : "moon"));
    $("theme").setAttribute("aria-label", label);
    $("theme").title = label;
    this.pages.repaint();
  }

  #turnTheme() {
    preferences.write({ theme: this.isDark ? "light" : "dark" });
    this.#theme();
  }
}

new Dashboard().start();
