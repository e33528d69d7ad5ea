// Anthropic's SDK for Node: messages, streams, tools, errors.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { KEY, MODEL, URL, VILLA, isVilla, runChecks } from "./checks.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "List 3 countries and their capitals." }];
const asked = { model: MODEL, max_tokens: 16, messages };
const tools = [{ name: "describe_villa", description: "Describes a villa.", input_schema: VILLA }];

await runChecks({
  async messages() {
    const answer = await client.messages.create({ ...asked, system: "You are brief." });
    assert.equal(answer.stop_reason, "max_tokens");
    assert.equal(answer.usage.output_tokens, 16);
    assert.ok(answer.content[0].text);
  },
  async stream() {
    let text = "";
    const stream = client.messages.stream(asked).on("text", (piece) => (text += piece));
    assert.equal((await stream.finalMessage()).content[0].text, text);
    assert.ok(text);
  },
  async "a stream that is given up"() {
    const stream = client.messages.stream({ ...asked, max_tokens: 2000 });
    for await (const _ of stream) break;
    stream.abort();
  },
  async "tool calls"() {
    const tool_choice = { type: "tool", name: "describe_villa" };
    const answer = await client.messages.create({ ...asked, max_tokens: 300, tools, tool_choice });
    const call = answer.content.at(-1);
    isVilla(call.input);
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "built" }] };
    const turns = [...messages, { role: "assistant", content: answer.content }, result];
    const last = await client.messages.create({ ...asked, messages: turns, tools, tool_choice: { type: "none" } });
    assert.ok(last.content[0].text);
  },
  async "count and models"() {
    assert.ok((await client.messages.countTokens({ model: MODEL, messages })).input_tokens > 0);
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, [MODEL]);
  },
  async errors() {
    await assert.rejects(client.messages.create({ ...asked, model: "another" }), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create({ ...asked, max_tokens: -1 }), Anthropic.BadRequestError);
    const other = new Anthropic({ baseURL: URL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.messages.create(asked), Anthropic.AuthenticationError);
  },
});
