// The drawing of a timeline: bands of time, how full the steps were, drafts. Made of nodes alone: the page's policy allows no markup.

import { details, duration, joined, KINDS } from "./timeline_records.js";

const SPACE = "http://www.w3.org/2000/svg";
const BAND = { top: 4, height: 26 };
const USE = { top: 38, height: 34 };
const DRAFTS = { top: 80, height: 22 };
const LEAST = 1.5; // pixels of a segment: what is narrower is drawn with its neighbours
const MOST_ZOOM = 4000;

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children);
  return node;
}

/** What has a moment alone. */
const isMark = ({ kind }) => kind === "prefix" || kind === "retracted";
/** Pixels between a segment and the next; narrow ones overlap a little, or their edges would shine through. */
const gapOf = (width) => (width > 4 ? 0.6 : -0.4);
const rounded = (value) => Math.round(value * 100) / 100;

/** Times for the axis: three to eight round ones. */
function ticks(from, to, most) {
  const rough = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let number = Math.ceil(from / step); number * step <= to + step * 1e-6; number += 1) found.push(number * step);
  return { found, step };
}

function tickText(seconds, step) {
  if (seconds === 0) return "0";
  const places = Math.max(0, -Math.floor(Math.log10(step * (step < 0.5 ? 1000 : 1)) + 1e-9));
  return step < 0.5 && seconds < 10 ? `${(seconds * 1000).toFixed(places)} ms` : `${seconds.toFixed(step < 1 ? Math.max(places, 1) : 0)} s`;
}

/** Draws parts, and lets the user go through them and look closer. */
export class TimelineChart {
  /**
   * @param {import("./timeline_records.js").Part[]} parts
   * @param {(text: string) => void} tell is told of the segment that is looked at
   */
  constructor(parts, tell) {
    this.parts = parts;
    this.tell = tell;
    this.whole = Math.max(...parts.map(({ end }) => end), 1e-6);
    this.from = 0;
    this.to = this.whole;
    this.width = 640;
    this.current = 0; // the part that has, or would get, the focus
    this.hasDrafts = parts.some(({ drafts }) => drafts);
    this.mostRows = Math.max(1, ...parts.filter(({ kind }) => kind === "decode").map(({ bucket }) => bucket));
    this.mostTokens = Math.max(1, ...parts.filter(({ kind }) => kind === "prefill").map(({ bucket }) => bucket));
    this.mostDrafts = Math.max(1, ...parts.map(({ drafts, steps }) => drafts / Math.max(1, steps)));
    // Chromium takes what listens for focus for a stop of the Tab key: it is none
    this.svg = shape("svg", { class: "timeline-chart", role: "group", tabindex: -1, "aria-label": this.#summary() });
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    this.svg.addEventListener("mouseover", (event) => this.#look(event.target));
    this.svg.addEventListener("focusin", (event) => this.#look(event.target));
    this.svg.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.#drag();
    this.draw();
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.svg);
  }

  /** @param {number} factor over 1: closer */
  zoom(factor, around = (this.from + this.to) / 2) {
    const span = Math.min(this.whole, Math.max(this.whole / MOST_ZOOM, (this.to - this.from) / factor));
    const share = (around - this.from) / (this.to - this.from);
    this.#view(around - share * span, span);
  }

  showAll() {
    this.#view(0, this.whole);
  }

  get isWhole() {
    return this.to - this.from >= this.whole * 0.9999;
  }

  draw() {
    const had = this.svg.contains(document.activeElement);
    const height = (this.hasDrafts ? DRAFTS.top + DRAFTS.height : USE.top + USE.height) + 22;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.setAttribute("height", String(height));
    const about = shape("g", { class: "timeline-use", "aria-hidden": "true" });
    const band = shape("g", {});
    this.segments = this.#segments();
    const focused = this.segments.findIndex(({ first, last }) => first <= this.current && this.current <= last);
    for (const [place, segment] of this.segments.entries()) {
      segment.node = this.#band(segment, place === Math.max(0, focused));
      segment.node.dataset.place = String(place);
      band.append(segment.node);
      this.#use(segment, about);
    }
    for (const { part: each, node } of this.segments) if (isMark(each)) band.append(node); // over its neighbours
    const labels = [shape("text", { x: 2, y: USE.top + 10, class: "timeline-label" }, "batch")];
    if (this.hasDrafts) labels.push(shape("text", { x: 2, y: DRAFTS.top + 10, class: "timeline-label" }, "drafts"));
    this.svg.replaceChildren(this.#axis(height), about, ...labels, band);
    if (had) this.segments[Math.max(0, focused)]?.node.focus({ preventScroll: true });
  }

  #summary() {
    return `Timeline of ${duration(this.whole)} with ${this.parts.length} parts. The arrow keys go from one to the next, plus and minus zoom, 0 shows all.`;
  }

  #x(seconds) {
    return ((seconds - this.from) / (this.to - this.from)) * this.width;
  }

  /** What is seen, without slivers: each a run of parts. */
  #segments() {
    const found = [];
    let run = null; // narrow neighbours
    const close = () => {
      if (run) found.push({ first: run.first, last: run.last, part: joined(this.parts.slice(run.first, run.last + 1)) });
      run = null;
    };
    for (const [number, each] of this.parts.entries()) {
      if (each.end < this.from || each.start > this.to) continue;
      const [left, right] = [this.#x(each.start), this.#x(each.end)];
      if (isMark(each) || right - left >= LEAST) {
        close();
        found.push({ first: number, last: number, part: each });
      } else if (run && right - run.left <= 2 * LEAST) {
        run.last = number;
      } else {
        close();
        run = { first: number, last: number, left };
      }
    }
    close();
    return found;
  }

  #band({ part: each, first, last }, isFocusable) {
    const left = Math.max(-2, this.#x(each.start));
    const right = Math.min(this.width + 2, this.#x(each.end));
    const text = this.text(each, first, last);
    const common = { class: `timeline-${each.kind}`, role: "img", "aria-label": text, tabindex: isFocusable ? 0 : -1 };
    const title = shape("title", {}, document.createTextNode(text));
    if (isMark(each)) {
      const x = rounded(Math.min(this.width - 5, Math.max(5, left)));
      const middle = BAND.top + BAND.height / 2;
      return shape("path", { ...common, d: `M${x} ${middle - 9}l5.5 9-5.5 9-5.5-9z` }, title);
    }
    const gap = gapOf(right - left);
    const whole = shape("g", common, title);
    whole.append(shape("rect", { x: rounded(left), y: BAND.top, width: rounded(Math.max(0.8, right - left - gap)), height: BAND.height, rx: right - left > 6 ? 2 : 0 }));
    if (each.stall > 0) {
      const share = Math.min(1, each.stall / Math.max(each.end - each.start, 1e-9));
      whole.append(shape("rect", { class: "timeline-stall", x: rounded(left), y: BAND.top + BAND.height - 6, width: rounded(Math.max(2, (right - left) * share)), height: 6 }));
    }
    return whole;
  }

  /** How full the step was, and its drafts. */
  #use({ part: each }, group) {
    if (!each.bucket) return;
    const left = Math.max(0, this.#x(each.start));
    const right = Math.min(this.width, this.#x(each.end));
    const width = Math.max(0.8, right - left - gapOf(right - left));
    const bar = (lane, share, name) => {
      const height = Math.max(share > 0 ? 1 : 0, share * lane.height);
      group.append(shape("rect", { class: name, x: rounded(left), y: rounded(lane.top + lane.height - height), width: rounded(width), height: rounded(height) }));
    };
    const most = each.kind === "decode" ? this.mostRows : this.mostTokens;
    bar(USE, each.bucket / most, "timeline-bucket");
    bar(USE, each.used / most, `timeline-used-${each.kind}`);
    if (this.hasDrafts && each.drafts) {
      const steps = Math.max(1, each.steps);
      bar(DRAFTS, each.drafts / steps / this.mostDrafts, "timeline-bucket");
      bar(DRAFTS, each.accepted / steps / this.mostDrafts, "timeline-accepted");
    }
  }

  #axis(height) {
    const group = shape("g", { class: "timeline-axis", "aria-hidden": "true" });
    const { found, step } = ticks(this.from, this.to, Math.max(3, Math.min(8, Math.floor(this.width / 90))));
    for (const seconds of found) {
      const x = rounded(this.#x(seconds));
      group.append(shape("line", { x1: x, x2: x, y1: 0, y2: height - 18 }));
      const anchor = x < 20 ? "start" : x > this.width - 24 ? "end" : "middle";
      group.append(shape("text", { x, y: height - 5, "text-anchor": anchor }, tickText(seconds, step)));
    }
    return group;
  }

  /** A segment in words. */
  text(each, first, last) {
    const [name] = KINDS[each.kind];
    const what = details(each);
    const number = first === last ? "" : ` (parts ${first + 1} to ${last + 1} of ${this.parts.length})`;
    const long = each.end > each.start ? `${duration(each.end - each.start)} from ${duration(each.start)} on` : `at ${duration(each.start)}`;
    return `${name}${number}: ${long}${what ? `; ${what}` : ""}`;
  }

  #segmentOf(target) {
    const node = target.closest?.("[data-place]");
    return node ? this.segments[Number(node.dataset.place)] : undefined;
  }

  #look(target) {
    const segment = this.#segmentOf(target);
    if (!segment) return;
    this.tell(this.text(segment.part, segment.first, segment.last));
    if (segment.node === document.activeElement) this.current = segment.first;
  }

  #go(place) {
    const segment = this.segments[Math.max(0, Math.min(this.segments.length - 1, place))];
    for (const each of this.segments) each.node.setAttribute("tabindex", each === segment ? "0" : "-1");
    this.current = segment.first;
    segment.node.focus({ preventScroll: true });
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const segment = this.#segmentOf(event.target);
    const place = segment ? this.segments.indexOf(segment) : 0;
    const middle = segment ? (segment.part.start + segment.part.end) / 2 : undefined;
    const span = this.to - this.from;
    const actions = {
      ArrowRight: () => this.#step(place, 1),
      ArrowLeft: () => this.#step(place, -1),
      Home: () => (this.#view(0, span), this.#go(0)),
      End: () => (this.#view(this.whole - span, span), this.#go(this.segments.length - 1)),
      "+": () => this.zoom(2, middle),
      "=": () => this.zoom(2, middle),
      "-": () => this.zoom(1 / 2, middle),
      0: () => this.showAll(),
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** To the next segment, or the one before; the view follows. */
  #step(place, by) {
    const next = this.segments[place + by];
    const span = this.to - this.from;
    if (next && next.part.start >= this.from && next.part.start < this.to) return this.#go(place + by);
    const number = by > 0 ? (this.segments.at(-1)?.last ?? -1) + (next ? 0 : 1) : (this.segments[0]?.first ?? 1) - (next ? 0 : 1);
    const part = this.parts[Math.max(0, Math.min(this.parts.length - 1, number))];
    this.current = this.parts.indexOf(part);
    this.#view(part.start - span / 2, span);
    this.#go(Math.max(0, this.segments.findIndex(({ first, last }) => first <= this.current && this.current <= last)));
  }

  #view(from, span) {
    this.from = Math.max(0, Math.min(this.whole - span, from));
    this.to = this.from + span;
    this.draw();
    this.svg.dispatchEvent(new CustomEvent("view"));
  }

  #wheel(event) {
    if (!event.ctrlKey) return; // else the page scrolls
    event.preventDefault();
    const box = this.svg.getBoundingClientRect();
    this.zoom(event.deltaY < 0 ? 1.25 : 0.8, this.from + ((event.clientX - box.left) / box.width) * (this.to - this.from));
  }

  #drag() {
    let last = null;
    const end = () => (last = null);
    this.svg.addEventListener("pointerdown", (event) => {
      if (this.isWhole || event.button !== 0) return;
      last = event.clientX;
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (last === null) return;
      const span = this.to - this.from;
      this.#view(this.from - ((event.clientX - last) / this.width) * span, span);
      last = event.clientX;
    });
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, end);
  }
}
