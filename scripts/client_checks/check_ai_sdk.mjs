// Vercel's AI SDK through its provider of OpenAI-compatible servers.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { KEY, MODEL, URL, VILLA, isVilla, runChecks } from "./checks.mjs";

const settings = { name: "palladio", baseURL: `${URL}/v1`, includeUsage: true, supportsStructuredOutputs: true };
const provider = createOpenAICompatible({ ...settings, apiKey: KEY });
const model = provider(MODEL);
const asked = { model, prompt: "Hello", maxRetries: 0 };
const Villa = z.object({ style: z.enum(["palladian", "gothic"]), floors: z.number().int().min(1).max(4) });
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
    const { text, usage, finishReason } = await generateText({ ...asked, system: "You are brief.", maxOutputTokens: 5 });
    assert.ok(text);
    assert.equal(usage.outputTokens, 5);
    assert.equal(finishReason, "length");
  },
  async streamText() {
    const result = streamText({ ...asked, maxOutputTokens: 5 });
    let text = "";
    for await (const piece of result.textStream) text += piece;
    assert.ok(text);
    assert.equal((await result.usage).outputTokens, 5);
  },
  async "structured output"() {
    for (const schema of [Villa, jsonSchema(VILLA)]) {
      const { output } = await generateText({ ...asked, output: Output.object({ schema }) });
      isVilla(output);
    }
    const { output } = await generateText({ ...asked, output: Output.choice({ options: ["yes", "no"] }) });
    assert.ok(["yes", "no"].includes(output));
  },
  async "streamed structured output"() {
    const result = streamText({ ...asked, output: Output.object({ schema: Villa }) });
    let last;
    for await (const partial of result.partialOutputStream) last = partial;
    isVilla(last);
    isVilla(await result.output);
  },
  async "tool calls"() {
    for (const toolChoice of ["required", named]) {
      const seen = [];
      const { toolCalls } = await generateText({ ...asked, tools: toolsInto(seen), toolChoice, maxOutputTokens: 300 });
      assert.ok(toolCalls.length && seen.length === toolCalls.length);
      seen.forEach(isVilla);
    }
  },
  async "a second step with the tool's result"() {
    const seen = [];
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? named : "none" });
    const { steps } = await generateText({
      ...asked, tools: toolsInto(seen), prepareStep, stopWhen: stepCountIs(2), maxOutputTokens: 200,
    });
    assert.equal(steps.length, 2);
    assert.ok(seen.length);
  },
  async "streamed tool calls"() {
    const seen = [];
    const result = streamText({ ...asked, tools: toolsInto(seen), toolChoice: named, maxOutputTokens: 300 });
    for await (const part of result.fullStream) assert.notEqual(part.type, "error", String(part.error));
    const toolCalls = await result.toolCalls;
    assert.ok(toolCalls.length && seen.length === toolCalls.length);
    seen.forEach(isVilla);
  },
  async "text completion"() {
    const { text } = await generateText({ ...asked, model: provider.completionModel(MODEL), maxOutputTokens: 4 });
    assert.ok(text);
  },
  async errors() {
    const failing = (fields) => generateText({ ...asked, ...fields });
    const status = (code) => (error) => APICallError.isInstance(error) && error.statusCode === code;
    await assert.rejects(failing({ model: provider("another") }), status(404));
    await assert.rejects(failing({ temperature: -1 }), status(400));
    const other = createOpenAICompatible({ ...settings, apiKey: "wrong" });
    await assert.rejects(failing({ model: other(MODEL) }), status(401));
  },
});
