// An answer while it arrives: the events of a stream become a message.

import { readEvents } from "./sse.js";
import { errorOf, request } from "../shared/api.js";

const MAX_TOKENS_KEPT = 5000; // whose probabilities a message keeps

/** Adds what one event of the stream says to a message of the assistant. */
export function addChunk(message, chunk, now = performance.now()) {
  const choice = chunk.choices?.[0];
  if (chunk.usage) message.usage = { prompt_tokens: chunk.usage.prompt_tokens, completion_tokens: chunk.usage.completion_tokens };
  if (chunk.timings) message.timing.decode = chunk.timings.decode;
  if (!choice) return;
  const { content, reasoning_content: thinking, tool_calls: calls } = choice.delta ?? {};
  if (thinking) {
    message.timing.thinkingFrom ??= now;
    message.thinking = (message.thinking ?? "") + thinking;
  }
  if (content) message.content += content;
  for (const call of calls ?? []) addCall(message, call);
  if (thinking || content || calls?.length) {
    if (message.timing.thinkingFrom && !thinking && message.thinkingSeconds === undefined) {
      message.thinkingSeconds = (now - message.timing.thinkingFrom) / 1000;
    }
    message.timing.first ??= now;
    message.timing.last = now;
    message.timing.events += 1;
  }
  addTokens(message, choice.logprobs?.content ?? []);
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

function addCall(message, { index, id, function: said }) {
  message.calls ??= [];
  const call = (message.calls[index ?? 0] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  call.name += said?.name ?? "";
  call.arguments += said?.arguments ?? "";
}

/** Kept small: [text, log-probability, [[text, log-probability], …]]. */
function addTokens(message, entries) {
  for (const { token, logprob, top_logprobs: top } of entries) {
    message.tokens ??= [];
    if (message.tokens.length >= MAX_TOKENS_KEPT) return;
    message.tokens.push([token, logprob, (top ?? []).map((each) => [each.token, each.logprob])]);
  }
}

const SHORT = 0.05; // seconds: what comes within so few was on its way together, and tells no speed

/** Tokens a second since the first one, by the server's clock once it has told; null: too few to tell. */
export function speedOf(message) {
  const { first, last, events, decode } = message.timing;
  const tokens = message.usage?.completion_tokens ?? events;
  if (decode) return tokens > 1 ? (tokens - 1) / decode : null;
  const seconds = (last - first) / 1000;
  return tokens > 1 && seconds >= SHORT ? (tokens - 1) / seconds : null;
}

/**
 * Asks, and fills the message until the answer ends.
 * @param {object} message of the assistant, empty or to be continued
 * @param {(message: object) => void} onChange after every event
 * @throws {ApiError} the server refuses, or breaks off
 * @throws {DOMException} AbortError
 */
export async function stream(body, message, { signal, onChange }) {
  message.timing = { begun: performance.now(), events: 0 };
  const response = await request("v1/chat/completions", { method: "POST", json: body, signal });
  message.requestId = response.headers.get("x-request-id");
  let isWhole = false;
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") {
        isWhole = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw errorOf(chunk.error.code === "engine_dead" ? 503 : 500, chunk);
      addChunk(message, chunk);
      onChange(message);
    }
  } catch (error) {
    if (error.name === "AbortError" || error.name === "ApiError") throw error;
    throw errorOf(500, { error: { message: "The connection broke off before the answer ended", code: "broken_off" } });
  } finally {
    message.speed = speedOf(message) ?? undefined;
    message.seconds = (performance.now() - message.timing.begun) / 1000;
    message.calls = message.calls?.filter(Boolean);
    if (message.calls === undefined) delete message.calls;
  }
  if (!isWhole && !message.finish) {
    throw errorOf(500, { error: { message: "The connection broke off before the answer ended", code: "broken_off" } });
  }
}
