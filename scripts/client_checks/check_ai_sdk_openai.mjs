// Vercel's AI SDK through its provider of OpenAI itself: /v1/responses, which is its default, and chat.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { KEY, MODEL, URL, VILLA, isVilla, runChecks } from "./checks.mjs";

const provider = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const models = [provider(MODEL), provider.chat(MODEL)];
const asked = { prompt: "List 3 countries and their capitals.", maxRetries: 0, temperature: 0 };
const named = { type: "tool", toolName: "describeVilla" };

function toolsInto(seen) {
  return {
    describeVilla: tool({
      description: "Describes a villa.",
      inputSchema: jsonSchema(VILLA),
      execute: async (villa) => seen.push(villa) && "built",
    }),
  };
}

await runChecks({
  async generateText() {
    for (const model of models) {
      const { text, usage, finishReason } = await generateText({ ...asked, model, system: "You are brief.", maxOutputTokens: 16 });
      assert.ok(text);
      assert.equal(usage.outputTokens, 16);
      assert.equal(finishReason, "length");
    }
  },
  async streamText() {
    for (const model of models) {
      const result = streamText({ ...asked, model, maxOutputTokens: 16 });
      let text = "";
      for await (const piece of result.textStream) text += piece;
      assert.ok(text);
      assert.equal((await result.usage).outputTokens, 16);
    }
  },
  async "structured output"() {
    for (const model of models) {
      const { output } = await generateText({ ...asked, model, output: Output.object({ schema: jsonSchema(VILLA) }) });
      isVilla(output);
      const result = streamText({ ...asked, model, output: Output.object({ schema: jsonSchema(VILLA) }) });
      for await (const _ of result.partialOutputStream);
      isVilla(await result.output);
    }
  },
  async "a second step with the tool's result"() {
    for (const model of models) {
      const seen = [];
      const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? named : "none" });
      const { steps } = await generateText({
        ...asked, model, tools: toolsInto(seen), prepareStep, stopWhen: stepCountIs(2), maxOutputTokens: 200,
      });
      assert.equal(steps.length, 2);
      seen.forEach(isVilla);
      assert.ok(seen.length);
    }
  },
  async "streamed tool calls"() {
    for (const model of models) {
      const seen = [];
      const result = streamText({ ...asked, model, tools: toolsInto(seen), toolChoice: named, maxOutputTokens: 300 });
      for await (const part of result.fullStream) assert.notEqual(part.type, "error", String(part.error));
      assert.ok((await result.toolCalls).length);
      seen.forEach(isVilla);
    }
  },
  async "options of OpenAI's"() {
    const options = { truncation: "auto", textVerbosity: "low", store: false, metadata: { a: "b" }, parallelToolCalls: false };
    const { text } = await generateText({ ...asked, model: models[0], providerOptions: { openai: options } });
    assert.ok(text);
    const { text: other } = await generateText({
      ...asked, model: models[1], providerOptions: { openai: { textVerbosity: "low", user: "a", serviceTier: "auto", logprobs: 2 } },
    });
    assert.ok(other);
  },
  async "a conversation by its id"() {
    const first = await generateText({ ...asked, model: models[0] });
    const previousResponseId = first.providerMetadata.openai.responseId;
    const { text } = await generateText({
      ...asked, model: models[0], prompt: "And 2 more?", providerOptions: { openai: { previousResponseId } },
    });
    assert.ok(text);
  },
  async "text completion"() {
    const { text } = await generateText({ ...asked, model: provider.completion(MODEL), maxOutputTokens: 4 });
    assert.ok(text);
  },
  async errors() {
    const failing = (fields) => generateText({ ...asked, model: models[0], ...fields });
    const status = (code) => (error) => APICallError.isInstance(error) && error.statusCode === code;
    await assert.rejects(failing({ model: provider("another") }), status(404));
    await assert.rejects(failing({ temperature: -1 }), status(400));
    const other = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "wrong" });
    await assert.rejects(failing({ model: other(MODEL) }), status(401));
    const embeddings = provider.textEmbeddingModel(MODEL);  // of a server that generates
    await assert.rejects(embedMany({ model: embeddings, values: ["a"], maxRetries: 0 }), status(400));
  },
});
