// The settings of a conversation and of the page, in a dialog.

import { apiKey } from "../shared/api.js";
import { el } from "../shared/dom.js";
import { NUMBERS } from "./body.js";
import { closeDialog, openDialog } from "./dialogs.js";

const SAMPLING = [
  ["temperature", "Temperature", "0 … 2", { min: 0, max: 2, step: 0.05 }],
  ["topP", "Top p", "0 … 1", { min: 0, max: 1, step: 0.01 }],
  ["topK", "Top k", "-1: all", { min: -1, step: 1 }],
  ["minP", "Min p", "0 … 1", { min: 0, max: 1, step: 0.01 }],
  ["maxTokens", "Most tokens", "of an answer", { min: 1, step: 1 }],
  ["seed", "Seed", "repeats an answer", { step: 1 }],
  ["presencePenalty", "Presence penalty", "-2 … 2", { min: -2, max: 2, step: 0.1 }],
  ["frequencyPenalty", "Frequency penalty", "-2 … 2", { min: -2, max: 2, step: 0.1 }],
  ["repetitionPenalty", "Repetition penalty", "over 0", { min: 0, step: 0.05 }],
];
const EXAMPLE = '{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}';
const TOOLS = '[{"name": "get_weather", "description": "…", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]';

/**
 * @param {object} settings of the conversation; changed as the user types
 * @param {object} page preferences of the page
 * @param {{server: object, focus?: string, onSettings, onPage, onDefaults, onExport, onImport, onDeleteAll, onForgetKey}} more
 */
export function openSettings(settings, page, more) {
  const { server } = more;
  const set = (name) => (event) => more.onSettings(name, event.target.value);

  const system = el("textarea", { rows: "4", dir: "auto", name: "system", placeholder: "How the model should answer", oninput: set("system") });
  system.value = settings.system ?? "";

  const numbers = SAMPLING.map(([name, label, hint, limits]) => {
    const input = el("input", { type: "number", inputmode: "decimal", name, ...limits, value: settings[name] ?? "", placeholder: server.sampling[NUMBERS[name]] ?? "as the server", oninput: set(name) });
    return el("label", { class: "field" }, el("span", {}, label, el("small", {}, ` ${hint}`)), input);
  });
  const stop = el("textarea", { rows: "2", name: "stop", placeholder: "one in each line", oninput: set("stop") });
  stop.value = settings.stop ?? "";

  const schema = el("textarea", { rows: "6", name: "schema", class: "mono", spellcheck: "false", placeholder: EXAMPLE, oninput: (event) => (more.onSettings("schema", event.target.value), check()) });
  schema.value = settings.schema ?? "";
  const schemaError = el("p", { class: "field-error", role: "status" });
  const schemaField = el("label", { class: "field" }, el("span", {}, "JSON schema"), schema);
  const format = choice("format", "Format", settings.format ?? "text", [["text", "Text"], ["json", "JSON, of any form"], ["schema", "JSON by a schema"]], (value) => (more.onSettings("format", value), check()));
  const check = () => {
    const isSchema = format.querySelector("select").value === "schema";
    schemaField.hidden = schemaError.hidden = !isSchema;
    schemaError.textContent = isSchema ? jsonError(schema.value, "object") : "";
  };
  check();

  const tools = el("textarea", { rows: "4", name: "tools", class: "mono", spellcheck: "false", placeholder: TOOLS, oninput: (event) => (more.onSettings("tools", event.target.value), (toolsError.textContent = event.target.value.trim() ? jsonError(event.target.value, "list") : "")) });
  tools.value = settings.tools ?? "";
  const toolsError = el("p", { class: "field-error", role: "status" });

  const hasGrammars = server.capabilities === null || server.capabilities.grammar_backend !== null;
  const canThink = server.capabilities === null || server.capabilities.reasoning_parser !== null;
  const thinking = choice("thinking", "Thinking", settings.thinking ?? "", [["", "As the model does"], ["on", "On"], ["off", "Off"]], (value) => more.onSettings("thinking", value));

  const content = [
    group("Conversation", el("label", { class: "field" }, el("span", {}, "System prompt"), system), canThink ? thinking : null),
    group("Sampling", ownSampling(server.sampling), el("div", { class: "grid" }, ...numbers), el("label", { class: "field" }, el("span", {}, "Stop strings"), stop)),
    hasGrammars ? group("Output", format, schemaField, schemaError) : null,
    group("Tools", el("label", { class: "field" }, el("span", {}, "Functions that the model may call, as JSON"), tools), toolsError),
    group(
      "This page",
      choice("theme", "Theme", page.theme ?? "", [["", "As the system"], ["light", "Light"], ["dark", "Dark"]], (value) => more.onPage("theme", value)),
      toggle("timeline", "Timeline under each answer", "where the time went: queue, prefill, each step", page.timeline, (value) => more.onPage("timeline", value)),
      toggle("probabilities", "Token probabilities", "asks the server for more, so answers may be slower", page.probabilities, (value) => more.onPage("probabilities", value)),
    ),
    group(
      "Data",
      el("p", { class: "small-print" }, "Conversations are stored in this browser only. The server keeps none of them."),
      el("div", { class: "row" }, button("Export all", more.onExport), button("Import", more.onImport), apiKey() === null ? null : button("Forget the API key", more.onForgetKey), button("Delete all", more.onDeleteAll, "danger")),
    ),
  ].filter(Boolean);

  const opened = openDialog("Settings", content, [["done", "Done"], ["defaults", "Use for new conversations"]], { wide: true });
  const wanted = more.focus && document.querySelector(`#dialog [name="${more.focus}"]`);
  wanted?.focus();
  opened.then((value) => value === "defaults" && more.onDefaults());
}

function group(title, ...content) {
  return el("section", { class: "group" }, el("h3", {}, title), ...content);
}

function ownSampling(values) {
  const named = Object.entries(values).map(([name, value]) => `${name} ${value}`);
  return named.length ? el("p", { class: "small-print" }, `The model's files do not say how to sample. What you leave empty here is ${named.join(", ")}.`) : null;
}

function choice(name, label, value, options, onchange) {
  const select = el("select", { name, onchange: (event) => onchange(event.target.value) }, ...options.map(([each, text]) => el("option", { value: each, selected: each === value }, text)));
  return el("label", { class: "field across" }, el("span", {}, label), select);
}

function toggle(name, label, hint, value, onchange) {
  const input = el("input", { type: "checkbox", role: "switch", name, checked: Boolean(value), onchange: (event) => onchange(event.target.checked) });
  return el("label", { class: "field across" }, el("span", {}, label, el("small", {}, ` ${hint}`)), input);
}

function button(label, act, kind = "quiet") {
  return el("button", { type: "button", class: kind, onclick: () => (closeDialog(), act()) }, label);
}

/** What is wrong with a text that should be JSON; empty: nothing. */
export function jsonError(text, kind) {
  try {
    const value = JSON.parse(text);
    const isRight = kind === "list" ? Array.isArray(value) : value !== null && typeof value === "object" && !Array.isArray(value);
    return isRight ? "" : `This must be ${kind === "list" ? "a list: […]" : "an object: {…}"}.`;
  } catch (error) {
    return `Not valid JSON: ${error.message}`;
  }
}
