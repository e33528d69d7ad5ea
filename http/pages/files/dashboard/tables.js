// Everything beside the charts: what is told once, as tables and lists. A section without content is not shown.

import { count, el } from "../shared/dom.js";
import { bytes, clock, duration, percent, seconds, short, whole } from "./format.js";

const MEMORY = [
  ["weights", "weights"],
  ["kv_cache", "KV cache"],
  ["layer_states", "states of layers"],
  ["snapshots", "snapshots of states"],
  ["state", "state of sampling"],
  ["workspace", "workspace of programs"],
];
const LIVE = new Set(["validating", "in_progress", "finalizing", "cancelling"]);
const STATUS = { in_progress: "running" };
const RESULTS = { hit: "from the cache", miss: "compiled", exported: "loaded", failed: "failed" };

function table(caption, heads, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), ...others.map((each) => el("td", {}, each)))))),
  );
}

/** A part of the page with a heading; `show` fills it, or hides it. */
class Section {
  constructor(title, { wide = false } = {}) {
    this.content = el("div");
    this.node = el("section", { class: wide ? "card wide" : "card", hidden: true }, el("h2", {}, title), this.content);
  }

  /** Only what has changed is drawn again, so that the focus, a selection and a scroll position stay. */
  fill(state, ...nodes) {
    const key = JSON.stringify(state);
    if (key === this.key) return;
    this.key = key;
    this.node.hidden = nodes.length === 0;
    const scrolled = this.content.querySelector(".scroll")?.scrollTop ?? 0;
    this.content.replaceChildren(...nodes.map((node) => node()));
    const box = this.content.querySelector(".scroll");
    if (box) box.scrollTop = scrolled;
  }
}

export class Ranks extends Section {
  constructor() {
    super("Data-parallel ranks", { wide: true });
  }

  show(engine) {
    const ranks = engine?.ranks ?? [];
    const heads = ["Rank", "Running", "Waiting", "Retractions", "KV cache in use", "Cached tokens", "Hit rate", "Tokens/s"];
    const rows = ranks.map((rank, place) => [`${place}`, whole(rank.running), whole(rank.waiting), whole(rank.retractions), percent(rank.total_tokens ? rank.used_tokens / rank.total_tokens : null), whole(rank.cached_tokens), percent(rank.hit_rate), short(rank.throughput)]);
    this.fill(rows, ...(rows.length ? [() => table("Data-parallel ranks", heads, rows)] : []));
  }
}

export class Buckets extends Section {
  constructor() {
    super("Steps by bucket");
  }

  show(engine) {
    const buckets = [...(engine?.buckets ?? [])].sort((a, b) => b.steps - a.steps);
    const all = buckets.reduce((sum, { steps }) => sum + steps, 0);
    const heads = ["Kind", "Requests", "Tokens", "Steps", "Share", "Padding"];
    const rows = buckets.map((one) => [one.kind, count(one.requests), count(one.tokens), count(one.steps), percent(one.steps / all), percent(one.padding_tokens / Math.max(1, one.padding_tokens + one.computed_tokens))]);
    this.fill(rows, ...(rows.length ? [() => table("Steps by bucket", heads, rows)] : []));
  }
}

export class Programs extends Section {
  constructor() {
    super("Programs");
  }

  show(engine) {
    const programs = engine?.programs;
    if (!programs) return this.fill(null);
    const facts = [
      ["Built", `${count(programs.built)} of ${count(programs.needed)}`],
      ...Object.entries(programs.by_result).map(([result, number]) => [`… ${RESULTS[result] ?? result}`, count(number)]),
      ["Time to build them", duration(programs.seconds)],
      ["Steps waited for them", seconds(programs.wait_seconds)],
      ["Compiled after the start (a defect)", count(programs.after_ready)],
    ];
    const rows = programs.slowest.map((one) => [one.name, RESULTS[one.result] ?? one.result, seconds(one.seconds)]);
    const list = () => el("details", {}, el("summary", {}, "The slowest ones"), table("The slowest programs", ["Program", "How", "Time"], rows));
    const nodes = [() => progress("Programs built", programs.built, programs.needed), () => factList(facts)];
    return this.fill([facts, rows], ...nodes, ...(rows.length ? [list] : []));
  }
}

function factList(pairs) {
  return el("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function progress(label, value, most) {
  return el("progress", { value, max: Math.max(1, most), "aria-label": label });
}

export class Memory extends Section {
  constructor() {
    super("Memory of a device, as planned");
  }

  show(engine) {
    const memory = engine?.memory;
    if (!memory?.total) return this.fill(null);
    const parts = MEMORY.map(([name, label]) => [label, memory[name]]).filter(([, value]) => value > 0);
    const planned = parts.reduce((sum, [, value]) => sum + value, 0);
    const kept = memory.total - Math.max(memory.usable, planned);
    parts.push(["left over", Math.max(0, memory.usable - planned)], ["kept for others", kept]);
    const bar = () => {
      const pieces = parts.map(([, value], place) => {
        const piece = el("i", { class: `piece piece-${place}` });
        piece.style.flexGrow = String(value / memory.total);
        return piece;
      });
      return el("div", { class: "bar", "aria-hidden": "true" }, ...pieces);
    };
    const list = () => el("ul", { class: "legend column" }, ...parts.map(([label, value], place) => el("li", {}, el("i", { class: `swatch piece-${place}` }), el("span", {}, label), el("b", {}, bytes(value)))));
    const now = memory.in_use === null ? "" : ` In use now: ${bytes(memory.in_use)}.`;
    return this.fill(memory, bar, list, () => el("p", { class: "small-print" }, `${bytes(memory.total)} in all.${now}`));
  }
}

export class Drafts extends Section {
  constructor() {
    super("Drafts");
  }

  show(engine) {
    const drafts = engine?.drafts;
    if (!drafts) return this.fill(null);
    const facts = [
      ["Right drafts", percent(drafts.accept_rate)],
      ["Tokens a request gets in a step", short(drafts.accept_length)],
      ["Drafts with room", count(drafts.tokens)],
      ["Of those right", count(drafts.accepted)],
    ];
    return this.fill(facts, () => factList(facts));
  }
}

export class Model extends Section {
  constructor() {
    super("Server");
  }

  show(data) {
    const { limits, model, restarts } = data.server;
    const facts = [["Model", model]];
    if (limits) {
      facts.push(["Architecture", limits.architecture], ["Device", limits.device], ["Type of numbers", limits.dtype], ["Attention", limits.attention_kernels], ["Context", `${count(limits.context_length)} tokens`], ["KV cache", `${count(limits.max_total_tokens)} tokens in pages of ${count(limits.page_size)}`], ["Requests at once", count(limits.max_running_requests)]);
    }
    facts.push(["Engine restarts", count(restarts)], ["Palladio", data.version]);
    const known = facts.filter(([, value]) => value);
    this.fill(known, () => factList(known));
  }
}

export class Batches extends Section {
  /** @param {(batch: any) => Promise<void>} cancel */
  constructor(cancel) {
    super("Batches", { wide: true });
    this.cancel = cancel;
  }

  /** @param {any[]|undefined} batches undefined: nobody asked */
  show(batches) {
    if (batches === undefined) return;
    const list = () => el("ul", { class: "batches" }, ...batches.map((batch) => this.#one(batch)));
    const focused = document.activeElement?.dataset?.batch;
    this.fill(batches, ...(batches.length ? [list] : []));
    if (focused && !document.activeElement?.dataset?.batch) this.content.querySelector(`[data-batch="${CSS.escape(focused)}"]`)?.focus();
  }

  #one(batch) {
    const { total, completed, failed } = batch.request_counts;
    const isLive = LIVE.has(batch.status);
    const canCancel = batch.status === "validating" || batch.status === "in_progress";
    const words = [`${count(completed + failed)} of ${count(total)} lines`, failed && `${count(failed)} failed`, `${short(batch.usage.output_tokens)} tokens out`, `from ${new Date(batch.created_at * 1000).toLocaleString()}`];
    return el(
      "li",
      {},
      el("div", { class: "batch-head" }, el("code", {}, batch.id), el("span", { class: `status ${batch.status}` }, STATUS[batch.status] ?? batch.status), el("span", { class: "spring" }), canCancel && el("button", { type: "button", class: "small", "data-batch": batch.id, "aria-label": `Cancel ${batch.id}`, onclick: () => this.cancel(batch) }, "Cancel")),
      (isLive || completed + failed > 0) && progress(`Progress of ${batch.id}`, completed + failed, total),
      el("p", { class: "small-print" }, `${batch.endpoint} · ${words.filter(Boolean).join(" · ")}`),
    );
  }
}

export class Errors extends Section {
  constructor() {
    super("Last errors", { wide: true });
  }

  show(errors) {
    const rows = errors.map((error) => [clock(error.time), error.where, error.status === null ? "" : `${error.status}`, error.count > 1 ? `${error.message} (${count(error.count)} times)` : error.message, error.request_id]);
    const none = () => el("p", { class: "small-print" }, "None since the server was started.");
    this.fill([rows], rows.length ? () => table("Last errors", ["Time", "Where", "Status", "Message", "Request"], rows) : none);
  }
}
