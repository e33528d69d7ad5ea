// Where an answer's time went, out of the server's explanation of its request: figures, a drawing, a table.

import { count, el } from "../shared/dom.js";
import { TimelineChart } from "./timeline_chart.js";
import { details, duration, KINDS, partsOf } from "./timeline_records.js";

/** Fields of a request whose timeline is to be drawn. */
export const requestFields = { record_timeline: true };

const ROWS = 200; // of the table that are made at once

/**
 * @param {object} explanation of GET /v1/requests/{id}/explain
 * @returns {Node}
 */
export function drawTimeline(explanation) {
  const samples = explanation.samples ?? [];
  const drawn = samples.map((sample) => drawSample(sample, samples.length > 1));
  return el("div", { class: "timeline-all" }, ...drawn, el("p", { class: "timeline-summary" }, explanation.summary));
}

function drawSample(sample, isOneOfMany) {
  const { parts, note } = partsOf(sample);
  const heading = isOneOfMany && el("h4", { class: "timeline-heading" }, `Sample ${sample.index + 1}`);
  if (!parts.some(({ start, end }) => end > start)) return el("div", { class: "timeline-sample" }, heading, el("p", { class: "timeline-note" }, "The engine has told nothing of this answer."));
  const told = el("p", { class: "timeline-told", role: "status" }, "Point at a part, or go through them with the arrow keys.");
  const chart = new TimelineChart(parts, (text) => (told.textContent = text));
  return el(
    "div",
    { class: "timeline-sample" },
    heading,
    el("div", { class: "timeline-above" }, figures(sample, parts), controls(chart)),
    chart.svg,
    legend(parts),
    told,
    note && el("p", { class: "timeline-note" }, note),
    table(parts),
  );
}

/** The figures that people ask for first. */
function figures(sample, parts) {
  const list = el("dl", { class: "timeline-figures" });
  const add = (name, value) => list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  const sum = (field, chosen = () => true) => parts.reduce((total, each) => total + (chosen(each) ? each[field] : 0), 0);
  const first = parts.find(({ newTokens }) => newTokens);
  if (first) add("First token", duration(first.end));
  const steps = parts.filter(({ kind, newTokens }) => kind === "decode" && newTokens);
  const seconds = steps.length ? steps.at(-1).end - steps[0].start : 0;
  if (seconds) add("Decode", `${count(Math.round((sum("newTokens", ({ kind }) => kind === "decode") / seconds) * 10) / 10)} tokens/s`);
  if (sample.prompt_tokens) add("From the cache", `${count(sample.cached_tokens ?? 0)} of ${count(sample.prompt_tokens)}`);
  const drafts = sum("drafts");
  if (drafts) add("Drafts right", `${Math.round((100 * sum("accepted")) / drafts)} %`);
  const stall = sum("stall");
  if (stall > 0.0005) add("Compiling", duration(stall));
  if (sample.num_retractions) add("Retracted", sample.num_retractions === 1 ? "once" : `${sample.num_retractions} times`);
  return list;
}

/** The kinds that there are, each with its time. */
function legend(parts) {
  const list = el("ul", { class: "timeline-legend", "aria-label": "Kinds of parts" });
  for (const [kind, [name, meaning]] of Object.entries(KINDS)) {
    const alike = parts.filter((each) => each.kind === kind);
    if (!alike.length) continue;
    const seconds = alike.reduce((total, each) => total + each.end - each.start, 0);
    const size = kind === "prefix" || kind === "retracted" ? `${count(alike.reduce((total, each) => total + each.tokens, 0))} tokens` : duration(seconds);
    list.append(el("li", { title: meaning }, el("span", { class: `timeline-swatch timeline-${kind}`, "aria-hidden": "true" }), `${name} `, el("b", {}, size)));
  }
  if (parts.some(({ stall }) => stall > 0)) list.append(el("li", { title: "programs were built first" }, el("span", { class: "timeline-swatch timeline-stall", "aria-hidden": "true" }), "Compiling"));
  return list;
}

function controls(chart) {
  const button = (sign, name, onclick) => el("button", { type: "button", class: "timeline-button", "aria-label": name, title: name, onclick }, sign);
  const closer = button("+", "Zoom in", () => chart.zoom(2));
  const wider = button("−", "Zoom out", () => chart.zoom(0.5));
  const all = button("All", "Show the whole timeline", () => chart.showAll());
  const update = () => {
    wider.disabled = all.disabled = chart.isWhole;
    chart.svg.classList.toggle("zoomed", !chart.isWhole);
  };
  chart.svg.addEventListener("view", update);
  update();
  return el("div", { class: "timeline-controls", role: "group", "aria-label": "Zoom" }, wider, closer, all);
}

/** The same as text, made when it is opened: it may be thousands of rows. */
function table(parts) {
  const body = el("tbody");
  const more = el("button", { type: "button", class: "small", onclick: () => addRows() });
  let shown = 0;
  function addRows() {
    const rows = parts.slice(shown, shown + ROWS).map((each, number) =>
      el("tr", {}, el("th", { scope: "row" }, String(shown + number + 1)), el("td", {}, KINDS[each.kind][0]), el("td", {}, duration(each.start)), el("td", {}, each.end > each.start ? duration(each.end - each.start) : ""), el("td", {}, details(each))),
    );
    body.append(...rows);
    shown += rows.length;
    more.hidden = shown >= parts.length;
    more.textContent = `${count(Math.min(ROWS, parts.length - shown))} more of ${count(parts.length)}`;
  }
  const heads = ["#", "Part", "Begins at", "Lasts", "What"].map((name) => el("th", { scope: "col" }, name));
  const grid = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Parts of the timeline" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body));
  const held = el("details", { class: "timeline-table" }, el("summary", {}, `As a table (${count(parts.length)} ${parts.length === 1 ? "part" : "parts"})`), grid, more);
  held.addEventListener("toggle", () => shown || addRows());
  return held;
}
