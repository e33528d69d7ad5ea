// Lines over time as SVG, with a legend that reads them out, and a table for whoever cannot see them.

import { el } from "../shared/dom.js";
import { clock } from "./format.js";

const SPACE = "http://www.w3.org/2000/svg";
const WIDTH = 600; // of the drawing, which is stretched to its place
const HEIGHT = 150;
const TABLE_ROWS = 12;

function svg(tag, attributes = {}) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** The least round number that is not below a value: 1, 2 or 5 and zeros. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * size).find((each) => each >= value * 0.9999);
}

export class Chart {
  /**
   * @param {string} title
   * @param {[string, string][]} lines name of the series, and what it is called here
   * @param {(value: number|null) => string} format
   * @param {{most?: number, note?: string, optional?: string[]}} [options] most: the upper end, if it is fixed;
   *   optional: lines that are not named where they have no values
   */
  constructor(title, lines, format, { most = null, note = null, optional = [] } = {}) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.most = most;
    this.optional = optional;
    this.at = null; // the row that is read out; null: the newest
    this.#build(note);
  }

  get names() {
    return this.lines.map(([name]) => name);
  }

  #build(note) {
    this.paths = this.lines.map((_, place) => svg("path", { class: `line line-${place + 1}`, "vector-effect": "non-scaling-stroke" }));
    this.grid = svg("path", { class: "grid", "vector-effect": "non-scaling-stroke" });
    this.cursor = svg("path", { class: "cursor", "vector-effect": "non-scaling-stroke" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.drawing.append(this.grid, ...this.paths, this.cursor);
    this.top = el("span", { class: "axis-top" });
    this.begin = el("span");
    this.end = el("span");
    this.values = this.lines.map(() => el("b", {}));
    this.labels = this.lines.map(([, label], place) => el("li", {}, el("i", { class: `key key-${place + 1}` }), el("span", {}, label), this.values[place]));
    this.plot = el(
      "div",
      { class: "plot", tabindex: "0", role: "img", onpointermove: (event) => this.#point(event), onpointerleave: () => this.#read(null), onkeydown: (event) => this.#key(event), onblur: () => this.#read(null) },
      this.drawing,
      this.top,
    );
    this.body = el("tbody");
    const head = el("tr", {}, el("th", { scope: "col" }, "Time"), ...this.lines.map(([, label]) => el("th", { scope: "col" }, label)));
    this.table = el("details", { class: "as-table", ontoggle: () => this.#fill() }, el("summary", {}, "As a table"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${this.title}, as a table` }, el("table", {}, el("thead", {}, head), this.body)));
    this.node = el(
      "section",
      { class: "card chart" },
      el("h2", {}, this.title),
      note && el("p", { class: "small-print" }, note),
      el("ul", { class: "legend" }, ...this.labels),
      this.plot,
      el("div", { class: "axis" }, this.begin, this.end),
      this.table,
    );
  }

  /** @param {{time: number[], lines: (number|null)[][]}} data */
  show(data) {
    this.data = data;
    const { time, lines } = data;
    const high = Math.max(0, ...lines.map((values) => values.reduce((most, value) => (value > most ? value : most), 0)));
    this.scale = this.most ?? roundUp(high);
    const begin = time[0] ?? 0;
    const span = Math.max(1, (time.at(-1) ?? 1) - begin);
    this.x = (place) => ((time[place] - begin) / span) * WIDTH;
    this.y = (value) => HEIGHT - (Math.min(value, this.scale) / this.scale) * (HEIGHT - 4) - 2;
    this.grid.setAttribute("d", [0, 0.5, 1].map((share) => `M0 ${this.y(share * this.scale)}H${WIDTH}`).join(""));
    lines.forEach((values, place) => {
      this.paths[place].setAttribute("d", this.#path(values));
      this.labels[place].hidden = this.optional.includes(this.names[place]) && values.every((value) => value === null);
    });
    this.top.textContent = this.format(this.scale);
    this.begin.textContent = time.length ? clock(begin) : "";
    this.end.textContent = time.length ? clock(time.at(-1)) : "";
    if (this.at !== null && this.at >= time.length) this.at = null;
    this.#read(this.at);
    this.plot.setAttribute("aria-label", this.#summary());
    if (this.table.open) this.#fill();
  }

  #path(values) {
    let path = "";
    let isDown = false;
    values.forEach((value, place) => {
      if (value === null) isDown = false;
      else {
        const point = `${this.x(place).toFixed(1)} ${this.y(value).toFixed(1)}`;
        path += isDown ? `L${point}` : `M${point}h0.1`; // a single point is a dot
        isDown = true;
      }
    });
    return path;
  }

  #summary() {
    const { time, lines } = this.data;
    if (!time.length) return `${this.title}: no figures yet`;
    const parts = this.lines.map(([, label], place) => {
      if (this.labels[place].hidden) return null;
      const known = lines[place].filter((value) => value !== null);
      if (!known.length) return `${label}: none`;
      const low = known.reduce((a, b) => Math.min(a, b));
      const high = known.reduce((a, b) => Math.max(a, b));
      return `${label}: now ${this.format(lines[place].at(-1))}, lowest ${this.format(low)}, highest ${this.format(high)}`;
    });
    return `${this.title} from ${clock(time[0])} to ${clock(time.at(-1))}. ${parts.filter(Boolean).join("; ")}. Arrow keys read single moments.`;
  }

  /** The legend's values at a moment. @param {number|null} place of a row */
  #read(place) {
    this.at = place;
    const { time, lines } = this.data ?? { time: [], lines: [] };
    const row = place ?? time.length - 1;
    this.values.forEach((node, line) => (node.textContent = this.format(lines[line]?.[row] ?? null)));
    this.cursor.setAttribute("d", place === null || row < 0 ? "" : `M${this.x(row)} 0V${HEIGHT}`);
    if (time.length) this.end.textContent = clock(time[row]);
  }

  #point(event) {
    const { time } = this.data ?? { time: [] };
    if (!time.length) return;
    const box = this.plot.getBoundingClientRect();
    const wanted = time[0] + ((event.clientX - box.left) / box.width) * (time.at(-1) - time[0]);
    const after = time.findIndex((each) => each >= wanted);
    this.#read(after < 0 ? time.length - 1 : after);
  }

  #key(event) {
    const { time } = this.data ?? { time: [] };
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return this.#read(null);
    if (!(event.key in moves) || !time.length) return;
    event.preventDefault();
    this.#read(Math.min(time.length - 1, Math.max(0, (this.at ?? time.length - 1) + moves[event.key])));
    const values = this.lines.map(([, label], line) => `${label} ${this.values[line].textContent}`);
    this.plot.setAttribute("aria-label", `${clock(time[this.at])}: ${values.join(", ")}`);
  }

  /** A dozen rows, evenly spread, the newest first. */
  #fill() {
    if (!this.table.open || !this.data) return;
    const { time, lines } = this.data;
    const count = Math.min(TABLE_ROWS, time.length);
    const places = Array.from({ length: count }, (_, number) => time.length - 1 - Math.round((number * (time.length - 1)) / Math.max(1, count - 1)));
    this.body.replaceChildren(...places.map((place) => el("tr", {}, el("th", { scope: "row" }, clock(time[place])), ...lines.map((values) => el("td", {}, this.format(values[place]))))));
  }
}
