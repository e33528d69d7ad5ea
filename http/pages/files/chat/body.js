// What is asked of /v1/chat/completions: messages and settings as the body of a request.

import { requestFields } from "./timeline.js";

export const NUMBERS = {
  temperature: "temperature",
  topP: "top_p",
  topK: "top_k",
  minP: "min_p",
  maxTokens: "max_tokens",
  seed: "seed",
  presencePenalty: "presence_penalty",
  frequencyPenalty: "frequency_penalty",
  repetitionPenalty: "repetition_penalty",
};

/** Settings that cannot be sent, in words. */
export class SettingsError extends Error {}

/**
 * @param {object[]} path the messages from the first to the one that is to be answered, or continued
 * @param {object} settings of the conversation; what is empty is the server's choice
 * @param {{model: string, pictures: Map<string, string>, continues?: boolean, sampling?: object}} more `pictures`: data URLs by the id of
 *   the message and the place of the file; `continues`: the last message goes on instead of a new one; `sampling`: what
 *   is sent where the settings are empty
 * @throws {SettingsError}
 */
export function bodyOf(path, settings, { model, pictures = new Map(), continues = false, sampling = {} }) {
  const body = {
    model,
    messages: [...(settings.system?.trim() ? [{ role: "system", content: settings.system }] : []), ...path.map((message) => wire(message, pictures))],
    stream: true,
    stream_options: { include_usage: true },
    return_timings: true,
    ...sampling,
  };
  for (const [name, field] of Object.entries(NUMBERS)) {
    const value = settings[name];
    if (value === undefined || value === null || value === "") continue;
    if (!Number.isFinite(Number(value))) throw new SettingsError(`Settings: ${field} is not a number.`);
    body[field] = Number(value);
  }
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (settings.thinking === "on" || settings.thinking === "off") body.enable_thinking = settings.thinking === "on";
  Object.assign(body, formatOf(settings), toolsOf(settings));
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  Object.assign(body, requestFields); // costs the engine some microseconds a step; whoever opens a timeline has it
  if (continues) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}

function formatOf({ format, schema }) {
  if (format === "json") return { response_format: { type: "json_object" } };
  if (format !== "schema") return {};
  const value = readJson(schema, "the JSON schema");
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new SettingsError("Settings: the JSON schema must be an object.");
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: value, strict: true } } };
}

function toolsOf({ tools }) {
  if (!tools?.trim()) return {};
  const value = readJson(tools, "the list of tools");
  if (!Array.isArray(value)) throw new SettingsError("Settings: tools must be a list, such as [{\"name\": \"…\", \"parameters\": {…}}].");
  if (!value.length) return {};
  return { tools: value.map((tool) => (tool?.type === "function" ? tool : { type: "function", function: tool })) };
}

function readJson(text, what) {
  try {
    return JSON.parse(text ?? "");
  } catch (error) {
    throw new SettingsError(`Settings: ${what} is not valid JSON: ${error.message}`);
  }
}

function wire(message, pictures) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId ?? "", content: message.content };
  if (message.role === "assistant") {
    const calls = (message.calls ?? []).map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    return { role: "assistant", content: message.content, ...(calls.length && { tool_calls: calls }) };
  }
  const text = [message.content, ...(message.files ?? []).filter((file) => file.text !== undefined).map(quoted)].filter(Boolean).join("\n\n");
  const urls = (message.files ?? []).map((_, place) => pictures.get(`${message.id}/${place}`)).filter(Boolean);
  if (!urls.length) return { role: "user", content: text };
  return { role: "user", content: [...urls.map((url) => ({ type: "image_url", image_url: { url } })), { type: "text", text }] };
}

/** A text file in the prompt, in a fence that is longer than any in it. */
function quoted({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}
