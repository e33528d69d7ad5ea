// The KV pages of each data-parallel rank: a cell for each page, or for as many as fit one.

import { count, el } from "../shared/dom.js";
import { percent, whole } from "./format.js";

const STATES = [
  ["used", "in use"],
  ["cached", "only in the prefix cache"],
  ["free", "free"],
];
const CELL = 9; // pixels of a cell and its gap, at least

export class PageMapView {
  constructor() {
    this.colours = STATES.map(([name]) => el("i", { class: `swatch swatch-${name}` }));
    this.numbers = STATES.map(() => el("b"));
    this.caption = el("p", { class: "small-print" });
    this.ranks = el("div", { class: "maps" });
    this.groups = el("div");
    const legend = STATES.map(([, label], place) => el("li", {}, this.colours[place], el("span", {}, label), this.numbers[place]));
    this.node = el("section", { class: "card wide", id: "pages" }, el("h2", {}, "KV pages"), el("ul", { class: "legend" }, ...legend), this.ranks, this.caption, this.groups);
    this.canvases = [];
    this.isSeen = true;
    new IntersectionObserver((entries) => (this.isSeen = entries.at(-1).isIntersecting)).observe(this.node);
    new ResizeObserver(() => this.#draw()).observe(this.ranks);
  }

  /** @param {{maps: any[]}|null|undefined} pages null: the engine did not answer; undefined: nobody asked */
  show(pages) {
    if (pages === undefined) return;
    this.node.classList.toggle("stale", pages === null);
    if (pages === null) return;
    this.maps = pages.maps;
    const sum = (name) => this.maps.reduce((total, map) => total + map[name], 0);
    const [all, used, cached] = ["num_pages", "used", "cached"].map(sum);
    [used, cached, all - used - cached].forEach((value, place) => (this.numbers[place].textContent = `${whole(value)} (${percent(all ? value / all : 0)})`));
    const each = this.maps[0]?.pages_per_cell ?? 1;
    this.caption.textContent = `${count(all)} pages${this.maps.length > 1 ? ` of ${this.maps.length} ranks` : ""}; a cell is ${each === 1 ? "one page" : `${count(each)} pages`}.`;
    this.#showGroups();
    this.#draw();
  }

  #showGroups() {
    const groups = this.maps[0]?.groups ?? [];
    if (groups.length < 2) {
      this.groups.replaceChildren();
      return;
    }
    const total = (place, name) => this.maps.reduce((sum, map) => sum + map.groups[place][name], 0);
    const rows = groups.map((group, place) =>
      el("tr", {}, el("th", { scope: "row" }, group.window === null ? "all tokens" : `window of ${count(group.window)}`), el("td", {}, count(group.tables)), el("td", {}, count(total(place, "used"))), el("td", {}, count(total(place, "cached")))),
    );
    const head = ["Layers that keep", "Block tables", "Pages in use", "Pages cached"].map((label) => el("th", { scope: "col" }, label));
    this.groups.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
  }

  #draw() {
    if (!this.maps) return;
    if (this.canvases.length !== this.maps.length) {
      this.canvases = this.maps.map(() => el("canvas", { role: "img" }));
      const name = (place) => this.maps.length > 1 && el("figcaption", {}, `Rank ${place}`);
      this.ranks.replaceChildren(...this.canvases.map((canvas, place) => el("figure", {}, name(place), canvas)));
    }
    this.maps.forEach((map, place) => this.#drawOne(this.canvases[place], map, place));
  }

  #drawOne(canvas, map, rank) {
    const cells = map.runs.reduce((total, [number]) => total + number, 0);
    const width = this.ranks.clientWidth;
    if (!width || !cells) return;
    const columns = Math.max(1, Math.min(cells, Math.floor(width / CELL)));
    const size = Math.min(16, width / columns);
    const ratio = devicePixelRatio || 1;
    const height = Math.ceil(cells / columns) * size;
    canvas.width = Math.round(columns * size * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${columns * size}px`;
    canvas.style.height = `${height}px`;
    const free = map.num_pages - map.used - map.cached;
    canvas.setAttribute("aria-label", `${this.maps.length > 1 ? `Rank ${rank}: ` : ""}${count(map.num_pages)} KV pages: ${count(map.used)} in use, ${count(map.cached)} only in the prefix cache, ${count(free)} free`);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const [used, cached, none] = this.colours.map((swatch) => getComputedStyle(swatch).backgroundColor);
    let cell = 0;
    for (const [number, inUse, inCache] of map.runs) {
      for (let last = cell + number; cell < last; cell += 1) {
        const pages = Math.min(map.pages_per_cell, map.num_pages - cell * map.pages_per_cell);
        const [x, y, side] = [(cell % columns) * size, Math.floor(cell / columns) * size, size - 1.5];
        pen.fillStyle = none;
        pen.fillRect(x, y, side, side);
        pen.fillStyle = used;
        pen.fillRect(x, y, side, (side * inUse) / pages);
        pen.fillStyle = cached;
        pen.fillRect(x, y + (side * inUse) / pages, side, (side * inCache) / pages);
      }
    }
  }

  /** The theme has changed. */
  repaint() {
    this.#draw();
  }
}
