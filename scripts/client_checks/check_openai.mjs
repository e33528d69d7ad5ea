// The openai package of Node: chat, streams, structured output, tools, completions, errors.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { KEY, MODEL, URL, VILLA, isVilla, runChecks } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "Hello" }];
const asked = { model: MODEL, messages };
const Villa = z.object({ style: z.enum(["palladian", "gothic"]), floors: z.number().int().min(1).max(4) });
const tools = [{ type: "function", function: { name: "describe_villa", parameters: VILLA, strict: true } }];
const named = { type: "function", function: { name: "describe_villa" } };

await runChecks({
  async chat() {
    const answer = await client.chat.completions.create({ ...asked, max_tokens: 5, n: 2 });
    assert.equal(answer.choices.length, 2);
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.completion_tokens, 10);
  },
  async stream() {
    const options = { stream: true, stream_options: { include_usage: true } };
    let text = "";
    let last;
    for await (const chunk of await client.chat.completions.create({ ...asked, max_tokens: 5, ...options })) {
      text += chunk.choices[0]?.delta.content ?? "";
      last = chunk;
    }
    assert.ok(text);
    assert.equal(last.usage.completion_tokens, 5);
  },
  async "stream helper"() {
    const stream = client.chat.completions.stream({ ...asked, max_tokens: 5 });
    let text = "";
    stream.on("content", (piece) => (text += piece));
    assert.equal(await stream.finalContent(), text);
  },
  async "a stream that is given up"() {
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 500, stream: true });
    for await (const chunk of stream) {
      assert.ok(chunk.id);
      break; // aborts the request
    }
    assert.ok(stream.controller.signal.aborted);
  },
  async "structured output"() {
    const format = zodResponseFormat(Villa, "villa");
    const answer = await client.chat.completions.parse({ ...asked, response_format: format });
    isVilla(answer.choices[0].message.parsed);
  },
  async "tool calls"() {
    for (const tool_choice of ["required", named]) {
      const answer = await client.chat.completions.create({ ...asked, tools, tool_choice, parallel_tool_calls: false });
      assert.equal(answer.choices[0].finish_reason, "tool_calls");
      const [call] = answer.choices[0].message.tool_calls;
      isVilla(JSON.parse(call.function.arguments));
      const result = { role: "tool", tool_call_id: call.id, content: "built" };
      const turns = [...messages, answer.choices[0].message, result];
      await client.chat.completions.create({ model: MODEL, messages: turns, tools, tool_choice: "none", max_tokens: 3 });
    }
  },
  async "streamed tool calls"() {
    const stream = client.chat.completions.stream({ ...asked, tools, tool_choice: named, parallel_tool_calls: false });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    assert.equal(message.tool_calls.length, 1);
    isVilla(JSON.parse(message.tool_calls[0].function.arguments));
  },
  async "the loop of runTools"() {
    const seen = [];
    const call = (villa) => seen.push(villa) && "built";
    const tool = zodFunction({ name: "describe_villa", parameters: Villa, function: call });
    const runner = client.chat.completions.runTools({ ...asked, tools: [tool], tool_choice: named, max_tokens: 200 });
    await runner.done();
    assert.ok(seen.length);
    seen.forEach(isVilla);
  },
  async completions() {
    const answer = await client.completions.create({ model: MODEL, prompt: ["One", "Two"], max_tokens: 3 });
    assert.equal(answer.choices.length, 2);
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, [MODEL]);
  },
  async errors() {
    const create = (fields, options) => client.chat.completions.create({ ...asked, ...fields }, options);
    await assert.rejects(create({ temperature: -1 }), (error) => {
      return error instanceof OpenAI.BadRequestError && error.param === "temperature";
    });
    await assert.rejects(create({ model: "another" }), (error) => {
      return error instanceof OpenAI.NotFoundError && error.code === "model_not_found";
    });
    const other = client.withOptions({ apiKey: "wrong" });
    await assert.rejects(other.chat.completions.create(asked), OpenAI.AuthenticationError);
  },
});
