// Modules of the chat page that need no browser, run by node. The first argument is the folder that holds them.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import test from "node:test";

globalThis.document = { baseURI: "http://server.example/llm/" };
globalThis.location = new URL(document.baseURI);
const folder = pathToFileURL(`${process.env.PAGES}/`);
const load = (name) => import(new URL(name, folder));
const { readEvents, dataOf } = await load("chat/sse.js");
const { Tree, titleOf } = await load("chat/tree.js");
const { exportText, readImport, ImportError } = await load("chat/transfer.js");
const { bodyOf, SettingsError } = await load("chat/body.js");
const { addChunk, speedOf } = await load("chat/answer.js");
const { address, errorOf } = await load("shared/api.js");
const { parse, safeAddress, topBlocks } = await load("chat/markdown.js");
const { AT_ONCE, costOf, MAX_BLOCK, portions, SLICE, slices } = await load("chat/portions.js");
const { readPiece } = await load("chat/whole_view.js");
const { details, duration, joined, KINDS, partsOf } = await load("chat/timeline_records.js");

async function read(...parts) {
  const bytes = parts.map((part) => (typeof part === "string" ? new TextEncoder().encode(part) : part));
  const found = [];
  for await (const data of readEvents(new Blob(bytes).stream())) found.push(data);
  return found;
}

async function readPieces(text, size) {
  const bytes = new TextEncoder().encode(text);
  const stream = new ReadableStream({
    start(controller) {
      for (let from = 0; from < bytes.length; from += size) controller.enqueue(bytes.slice(from, from + size));
      controller.close();
    },
  });
  const found = [];
  for await (const data of readEvents(stream)) found.push(data);
  return found;
}

test("events are read however they are cut", async () => {
  const text = ': hello\n\ndata: {"a":"ä🎉"}\n\ndata: one\ndata: two\n\nevent: x\ndata:three\n\ndata: [DONE]\n\n';
  const expected = ['{"a":"ä🎉"}', "one\ntwo", "three", "[DONE]"];
  for (const size of [1, 2, 3, 7, 1000]) assert.deepEqual(await readPieces(text, size), expected);
  assert.deepEqual(await read(text.replaceAll("\n", "\r\n")), expected);
  assert.deepEqual(await read("data: last without an end"), ["last without an end"]);
  assert.equal(dataOf("event: ping"), null);
});

test("a tree keeps every branch", () => {
  const tree = new Tree([
    { id: "a", parent: null },
    { id: "b", parent: "a" },
    { id: "c", parent: "b" },
    { id: "d", parent: "a" },
    { id: "lost", parent: "nowhere" },
    { id: "g", parent: "f" },
    { id: "h", parent: "g" },
    { id: "f", parent: "e" },
    { id: "e", parent: null }, // made when the clock had been set back
    { id: "ring", parent: "ring" },
  ]);
  assert.equal(tree.size, 8);
  assert.deepEqual(tree.path("h").map(({ id }) => id), ["e", "f", "g", "h"]);
  assert.deepEqual(tree.path("c").map(({ id }) => id), ["a", "b", "c"]);
  assert.deepEqual(tree.siblings("b"), ["b", "d"]);
  assert.equal(tree.newestLeaf(), "h");
  assert.equal(tree.newestLeaf("a"), "d");
  assert.equal(tree.newestLeaf("b"), "c");
  assert.deepEqual(tree.remove("b").sort(), ["b", "c"]);
  assert.deepEqual(tree.siblings("d"), ["d"]);
  assert.equal(titleOf("\n# **A title**\nmore"), "A title");
  assert.ok(titleOf("word ".repeat(40)).length <= 61);
});

test("what is exported comes back under new ids", () => {
  const messages = [
    { id: "a", conversation: "x", parent: null, role: "user", content: "hi", created: 1, files: [{ name: "n", type: "text/plain", size: 2, text: "t" }] },
    { id: "b", conversation: "x", parent: "a", role: "assistant", content: "yes", thinking: "hm", calls: [{ id: "1", name: "f", arguments: "{}" }], created: 2 },
  ];
  const text = exportText([{ conversation: { id: "x", title: "T", created: 1, updated: 2, active: "b", settings: { system: "s" } }, messages }]);
  const [{ conversation, messages: found }] = readImport(text);
  assert.notEqual(conversation.id, "x");
  assert.deepEqual(conversation.settings, { system: "s" });
  assert.equal(conversation.active, found[1].id);
  assert.equal(found[1].parent, found[0].id);
  assert.deepEqual(found.map(({ content, thinking, calls, files }) => ({ content, thinking, calls, files })), messages.map(({ content, thinking, calls, files }) => ({ content, thinking, calls, files })));
});

test("an import is checked", () => {
  for (const text of ["", "{}", "[]", '{"format": "other"}', '[{"role": "robot"}]', '{"format": "palladio.chat/1", "conversations": [{}]}']) {
    assert.throws(() => readImport(text), ImportError, text);
  }
  const evil = { id: "a", parent: null, role: "user", content: { toString: "x" }, onclick: "alert(1)", requestId: 5, files: [{ url: "data:text/html,x" }, { url: "data:image/svg+xml;base64,AAAA" }, { url: "data:image/png;base64,AAAAA" }] };
  const text = `{"format": "palladio.chat/1", "conversations": [{"messages": [${JSON.stringify(evil)}], "settings": {"__proto__": {"a": 1}, "x": {"y": 1}, "seed": 3}}]}`;
  const [{ conversation, messages }] = readImport(text);
  assert.deepEqual(Object.keys(messages[0]).sort(), ["content", "conversation", "created", "files", "id", "parent", "role"]);
  assert.equal(messages[0].content, "");
  assert.deepEqual(messages[0].files, []);
  assert.deepEqual(conversation.settings, { seed: "3" }); // as its field has it
  assert.equal({}.a, undefined);
  for (const parents of [["b", "a"], ["a", null]]) {
    const ring = parents.map((parent, place) => ({ id: parents[0] === "a" ? "a" : "ab"[place], parent, role: "user", content: "x" }));
    assert.throws(() => readImport(JSON.stringify({ format: "palladio.chat/1", conversations: [{ messages: ring }] })), ImportError);
  }
  const [openai] = readImport('[{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}]');
  assert.equal(openai.conversation.settings.system, "s");
  assert.deepEqual(openai.messages.map(({ role, content }) => [role, content]), [["user", "hi"], ["assistant", ""]]);
  assert.equal(openai.messages[1].calls[0].name, "f");
});

test("settings become fields of the request", () => {
  const path = [
    { id: "a", role: "user", content: "hi", files: [{ name: "n.md", text: "a ``` b" }] },
    { id: "b", role: "assistant", content: "", thinking: "hm", calls: [{ id: "1", name: "f", arguments: "{}" }] },
    { id: "c", role: "tool", content: "12", callId: "1" },
  ];
  const plain = bodyOf(path, {}, { model: "m" });
  assert.deepEqual(Object.keys(plain).sort(), ["messages", "model", "record_timeline", "return_timings", "stream", "stream_options"]);
  assert.deepEqual(plain.messages.map(({ role }) => role), ["user", "assistant", "tool"]);
  assert.equal(plain.messages[0].content, "hi\n\nn.md:\n````\na ``` b\n````");
  assert.equal(plain.messages[1].reasoning_content, undefined);
  const sampling = { temperature: 0.7, min_p: 0.05 };
  const chosen = bodyOf(path, { temperature: "0", minP: "" }, { model: "m", sampling });
  assert.deepEqual([chosen.temperature, chosen.min_p], [0, 0.05]);
  const full = bodyOf(path, { system: "s", temperature: "0.5", maxTokens: "7", topK: "", stop: "x\n\ny", thinking: "off", format: "schema", schema: '{"type": "object"}', tools: '[{"name": "f"}]', probabilities: true }, { model: "m", continues: true });
  assert.equal(full.messages[0].role, "system");
  assert.deepEqual([full.temperature, full.max_tokens, full.top_k, full.stop, full.enable_thinking], [0.5, 7, undefined, ["x", "y"], false]);
  assert.equal(full.response_format.json_schema.schema.type, "object");
  assert.deepEqual(full.tools, [{ type: "function", function: { name: "f" } }]);
  assert.deepEqual([full.logprobs, full.continue_final_message, full.add_generation_prompt], [true, true, false]);
  assert.equal(bodyOf(path, { format: "json" }, { model: "m" }).response_format.type, "json_object");
  const picture = bodyOf([{ id: "a", role: "user", content: "see", files: [{ blob: {} }] }], {}, { model: "m", pictures: new Map([["a/0", "data:image/png;base64,AA"]]) });
  assert.deepEqual(picture.messages[0].content.map(({ type }) => type), ["image_url", "text"]);
  for (const wrong of [{ format: "schema", schema: "{" }, { format: "schema", schema: "[]" }, { tools: "{}" }, { temperature: "warm" }]) {
    assert.throws(() => bodyOf(path, wrong, { model: "m" }), SettingsError);
  }
});

test("chunks become a message", () => {
  const message = { content: "", timing: { events: 0 } };
  const delta = (value, more = {}) => ({ choices: [{ delta: value, ...more }] });
  addChunk(message, delta({ role: "assistant", content: "" }), 0);
  addChunk(message, delta({ reasoning_content: "hm" }), 1000);
  addChunk(message, delta({ content: "a" }), 3000);
  addChunk(message, delta({ content: "b", tool_calls: [{ index: 0, id: "1", function: { name: "f", arguments: '{"x"' } }] }), 3500);
  addChunk(message, delta({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }] }, { finish_reason: "tool_calls", logprobs: { content: [{ token: "t", logprob: -1, top_logprobs: [] }] } }), 4000);
  addChunk(message, { choices: [], usage: { prompt_tokens: 3, completion_tokens: 4 } }, 5000);
  assert.deepEqual([message.thinking, message.content, message.thinkingSeconds, message.finish], ["hm", "ab", 2, "tool_calls"]);
  assert.deepEqual(message.calls, [{ id: "1", name: "f", arguments: '{"x":1}' }]);
  assert.deepEqual(message.tokens, [["t", -1, []]]);
  assert.equal(speedOf(message), 1); // three tokens after the first, in three seconds
  message.timing.last = 1001;
  assert.equal(speedOf(message), null); // all came together
  addChunk(message, { choices: [], timings: { decode: 0.5 } });
  assert.equal(speedOf(message), 6); // by the server's clock
});

test("errors are told in words", () => {
  assert.equal(errorOf(400, { error: { message: "the prompt is too long", code: "c" } }).message, "The prompt is too long.");
  assert.equal(errorOf(400, { error: { message: "messages.1.tool_calls would be lost" } }).message, "messages.1.tool_calls would be lost.");
  assert.equal(errorOf(503, null).isTemporary, true);
  assert.equal(errorOf(503, { error: { message: "full", code: "overloaded" } }).isTemporary, false);
  assert.match(errorOf(418, "teapot").message, /418/);
  assert.equal(address("/v1/models").href, "http://server.example/llm/v1/models");
});

test("links lead to other sites by http, https or mail", () => {
  const good = ["https://a.example/", "http://a.example:8000/x?y#z", "mailto:a@b.example"];
  const bad = ["javascript:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "/flush_cache", "//a.example", "http://server.example/flush_cache", "http://u:p@a.example/", "blob:http://a.example/1", "file:///x", "x", ""];
  assert.deepEqual(good.map(safeAddress), good);
  assert.deepEqual(bad.map(safeAddress), bad.map(() => null));
  const all = (text) => parse(text).flatMap((token) => [token, ...(token.children ?? [])]);
  const kinds = (text) => all(text).map(({ type }) => type);
  for (const href of bad.filter(Boolean)) {
    const links = all(`[x](${href})`).filter(({ type }) => type === "link_open").map((token) => token.attrGet("href"));
    assert.ok(links.every((each) => each !== href && safeAddress(each) !== null), href);
  }
  assert.ok(!kinds("<b>x</b>\n\n<script>x</script>").some((kind) => kind.startsWith("html")));
});

test("formulas are found, and money is not", () => {
  const formulas = (text) => parse(text).flatMap((token) => [token, ...(token.children ?? [])]).filter(({ type }) => type.startsWith("math")).map(({ content }) => content);
  assert.deepEqual(formulas("$x^2$ and \\(y\\), \\[z\\]"), ["x^2", "y", "z"]);
  assert.deepEqual(formulas("$$\na\n+b\n$$\n\n\\[\nc\n\\]"), ["a\n+b", "c"]);
  assert.deepEqual(formulas("It costs $5 or $10, and `$x$` is code."), []);
  assert.deepEqual(formulas("$$ never closed\n\nmore"), []);
  assert.deepEqual(topBlocks(parse("# a\n\ntext\n\n- b\n- c")).map(([, line]) => line), [0, 2, 4]);
  const begun = performance.now();
  for (const text of ["\\[\n".repeat(20000), "\\(".repeat(20000), "$".repeat(20001), "$$ x\n\n".repeat(5000)]) parse(text);
  assert.ok(performance.now() - begun < 5000, "a text that closes nothing is read in linear time");
});

test("times have three digits", () => {
  const told = [0, 0.0000312, 0.00812, 0.0999, 0.34, 0.9999, 1.234, 59.96, 125.9].map(duration);
  assert.deepEqual(told, ["0 ms", "0.03 ms", "8.12 ms", "99.9 ms", "340 ms", "1.00 s", "1.23 s", "60.0 s", "2 min 5 s"]);
});

test("records become parts, and neighbours one part with their sums", () => {
  const records = [
    { kind: "queued", after_seconds: 0, seconds: 1, reason: "memory" },
    { kind: "decode", after_seconds: 1, seconds: 0.5, steps: 1, new_tokens: 2, rows: 3, bucket: 4, drafts: 3, accepted_drafts: 1 },
    { kind: "decode", after_seconds: 1.5, seconds: 0.5, steps: 3, new_tokens: 3, rows: 1, bucket: 8, compile_seconds: 0.25 },
    { kind: "__proto__", after_seconds: 2, seconds: 1 },
  ];
  const { parts, note } = partsOf({ timeline: { state: "merged", most_steps: 3, records } });
  assert.match(note, /up to 3 steps/);
  assert.deepEqual(parts.map(({ kind }) => kind), ["queued", "decode", "decode", "mixed"]);
  assert.ok(parts.every(({ kind }) => Object.hasOwn(KINDS, kind)));
  assert.equal(details(parts[0]), "the KV cache was full");
  const both = joined(parts.slice(1, 3));
  assert.deepEqual([both.start, both.end, both.steps, both.newTokens, both.drafts, both.accepted, both.stall], [1, 2, 4, 5, 3, 1, 0.25]);
  assert.deepEqual([both.used, both.bucket], [1.5, 7]);
  assert.equal(joined(parts).kind, "queued", "what lasts longest names it");
});

test("without records there are the stages", () => {
  const sample = { handover_seconds: 0.1, queue_seconds: 0.5, wait_slots_seconds: 0.3, wait_memory_seconds: 0.1, prefill_seconds: 0.2, decode_seconds: 1, decode_steps: 9, completion_tokens: 10, cached_tokens: 4 };
  const chunks = [0.5, 0.55].map((start) => ({ after_seconds: start, seconds: 0.1, tokens: 8, step_tokens: 9, bucket_tokens: 16 }));
  const { parts, note } = partsOf({ ...sample, prefill_chunks: [...chunks, { ...chunks[0], after_seconds: 0.7, seconds: null }] });
  assert.match(note, /not recorded/);
  assert.deepEqual(parts.map(({ kind }) => kind), ["handover", "queued", "prefix", "prefill", "prefill", "prefill", "decode"]);
  assert.equal(parts[1].reason, "slots");
  for (const [place, part] of parts.entries()) assert.ok(place === 0 || part.start >= parts[place - 1].end - 1e-9, "they do not overlap");
  assert.deepEqual(partsOf({}).parts, []);
});

const HUGE = {
  formulas: "$x^2$ and text.\n\n".repeat(6_000),
  "formulas of one paragraph": "$x^2$ ".repeat(6_000),
  "a line": "x".repeat(390_000),
  "a list": "- item\n".repeat(20_000),
  "nested lists": Array.from({ length: 2_000 }, (_, depth) => `${"  ".repeat(depth % 60)}- item`).join("\n"),
  quotes: `${">".repeat(5_000)} text\n\n`.repeat(10),
  "a table": `|a|b|\n|-|-|\n${"|1|2|\n".repeat(20_000)}`,
  "a block of code": `\`\`\`js\n${"f(1); // x\n".repeat(30_000)}\`\`\``,
  links: "https://a.example/x [b](https://b.example/)\n\n".repeat(5_000),
  headings: "# a\n".repeat(20_000),
};

for (const [name, text] of Object.entries(HUGE)) {
  test(`${name}: no portion is more than can be drawn in one go, and none is left out`, () => {
    const tokens = parse(text);
    const parts = portions(tokens);
    let place = 0;
    for (const { from, to, isPlain } of parts) {
      assert.equal(from, place);
      place = to;
      const cost = tokens.slice(from, to).reduce((sum, token) => sum + costOf(token), 0);
      assert.ok(isPlain || cost <= MAX_BLOCK, `${cost}`);
      assert.ok(isPlain || cost <= AT_ONCE || tokens.slice(from, to).filter(({ level, nesting }) => level === 0 && nesting >= 0).length === 1);
    }
    assert.equal(place, tokens.length);
  });
}

test("a text that is parsed in pieces has the blocks of the whole, and most pieces are small", () => {
  const kinds = (tokens) => tokens.map(({ type, tag }) => `${type} ${tag}`);
  const code = `\`\`\`js\n${"f(1);\n\n# x\n".repeat(3_000)}\`\`\`\n\n`;
  for (const [text, most] of [[HUGE.formulas, 20_000], [HUGE.links, 20_000], [`a\n\n${code}# b\n\n${HUGE.links}`, 2 * 20_000]]) {
    const found = [];
    for (let from = 0; from < text.length; ) {
      const { tokens, lines, end } = readPiece(text, from);
      assert.ok(end > from && lines.join("\n").length <= most, `${end - from}`);
      found.push(...kinds(tokens));
      from = end;
    }
    assert.deepEqual(found, kinds(parse(text)));
  }
  for (const name of ["a line", "a list", "a table", "a block of code"]) assert.equal(readPiece(HUGE[name], 0).rest, HUGE[name]);
});

test("what costs far too much is shown as it was written", () => {
  const isPlain = (name) => portions(parse(HUGE[name])).some((part) => part.isPlain);
  assert.deepEqual(Object.keys(HUGE).filter(isPlain), ["formulas of one paragraph", "a line", "a list", "a table", "a block of code"]);
});

test("an ordinary text is one portion", () => {
  const [part, ...more] = portions(parse("# a\n\ntext with $x$\n\n- b\n- c\n\n```js\nx\n```\n"));
  assert.deepEqual([more.length, part.isPlain, part.line], [0, false, 0]);
  assert.deepEqual(portions([]), []);
});

test("plain text is cut at ends of lines, and nothing is lost", () => {
  for (const text of ["x".repeat(5 * SLICE), "word\n".repeat(SLICE), "\u{1f600}".repeat(2 * SLICE), `a${"\u{1f600}".repeat(SLICE)}`]) {
    const parts = slices(text);
    assert.ok(parts.every((part) => part.length <= SLICE + 1 && part.isWellFormed()));
    assert.equal(parts.join("").replaceAll("\n", ""), text.replaceAll("\n", ""));
  }
  assert.deepEqual(slices(`${"a".repeat(SLICE - 1)}\nb`), ["a".repeat(SLICE - 1), "b"]);
});
