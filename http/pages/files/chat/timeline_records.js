// What the server tells of a request's time, as a list of parts in order, and in words.

/** The kinds of parts, in the order of the legend: their names, and what they mean. */
export const KINDS = {
  handover: ["Received", "the prompt was tokenized and sent to the engine"],
  queued: ["Queued", "it waited for its turn"],
  prefix: ["Found in the cache", "tokens of the prompt that were computed before"],
  prefill: ["Prefill", "the prompt was computed"],
  decode: ["Decode", "each step gives one token, or more with drafts"],
  idle: ["Others' turn", "steps of other requests ran, or generation was paused"],
  retracted: ["Retracted", "its memory was given to others; it is computed again"],
  mixed: ["Several", "parts of several kinds, too many to be kept apart"],
};

const REASONS = {
  slots: "as many requests ran as may",
  memory: "the KV cache was full",
  step: "a step was running",
  compile: "programs for more requests were not compiled yet",
  grammar: "its grammar was being compiled",
};

/**
 * @typedef {object} Part
 * @property {string} kind a key of KINDS
 * @property {number} start seconds since the request came
 * @property {number} end
 * @property {number} steps
 * @property {number} newTokens that the answer got
 * @property {number} tokens of the prompt; of "retracted": lost
 * @property {number} used rows, of "prefill" tokens, that the step computed; bucket: that its program holds
 * @property {number} drafts
 * @property {number} accepted
 * @property {number} stall seconds, of these, in which programs were compiled
 * @property {string} reason of "queued"
 */

const part = (kind, start, seconds, rest = {}) => ({
  kind, start, end: start + Math.max(0, seconds), steps: 0, newTokens: 0, tokens: 0, used: 0, bucket: 0, drafts: 0, accepted: 0, stall: 0, reason: "", ...rest,
});

/**
 * @param {object} sample of an explanation
 * @returns {{parts: Part[], note: string}} note: what is missing, in words
 */
export function partsOf(sample) {
  const { timeline } = sample;
  if (timeline?.records?.length) {
    const parts = timeline.records.map((record) =>
      part(Object.hasOwn(KINDS, record.kind) ? record.kind : "mixed", record.after_seconds, record.seconds, {
        steps: record.steps ?? 0,
        newTokens: record.new_tokens ?? 0,
        tokens: record.tokens ?? record.lost_tokens ?? 0,
        used: record.rows ?? record.step_tokens ?? 0,
        bucket: record.bucket ?? record.bucket_tokens ?? 0,
        drafts: record.drafts ?? 0,
        accepted: record.accepted_drafts ?? 0,
        stall: record.compile_seconds ?? 0,
        reason: record.reason ?? "",
      }),
    );
    const note = timeline.state === "merged" ? `A long answer: one part stands for up to ${timeline.most_steps} steps.` : "";
    return { parts, note };
  }
  const why = timeline?.state === "dropped" ? "The server has dropped the single steps to make room for others'." : "Single steps were not recorded for this answer.";
  return { parts: stages(sample), note: why };
}

/** The stages alone, which every explanation has. */
function stages(sample) {
  const parts = [];
  const handover = sample.handover_seconds ?? 0;
  const queue = sample.queue_seconds ?? handover;
  if (handover) parts.push(part("handover", 0, handover));
  const waits = Object.keys(REASONS).map((reason) => [sample[`wait_${reason}_seconds`] ?? 0, reason]);
  const [, reason] = waits.reduce((most, each) => (each[0] > most[0] ? each : most), [0, ""]);
  if (queue > handover) parts.push(part("queued", handover, queue - handover, { reason }));
  if (sample.cached_tokens) parts.push(part("prefix", queue, 0, { tokens: sample.cached_tokens }));
  let end = queue;
  for (const chunk of sample.prefill_chunks ?? []) {
    const start = Math.max(end, chunk.after_seconds);
    const seconds = chunk.seconds === null ? 0 : chunk.after_seconds + chunk.seconds - start;
    parts.push(part("prefill", start, seconds, { steps: 1, tokens: chunk.tokens, used: chunk.step_tokens, bucket: chunk.bucket_tokens }));
    end = Math.max(end, parts.at(-1).end);
  }
  if (sample.decode_seconds) {
    const counts = { steps: sample.decode_steps ?? 0, newTokens: Math.max(0, (sample.completion_tokens ?? 0) - 1), used: sample.decode_mean_rows ?? 0, bucket: sample.decode_mean_bucket ?? 0 };
    parts.push(part("decode", Math.max(end, queue + (sample.prefill_seconds ?? 0)), sample.decode_seconds, counts));
  }
  for (const lost of sample.retractions ?? []) parts.push(part("retracted", lost.after_seconds, 0, { tokens: lost.lost_tokens }));
  return parts.sort((one, other) => one.start - other.start);
}

/** `0 ms`, `8.12 ms`, `340 ms`, `1.23 s`, `2 min 5 s`: three digits. */
export function duration(seconds) {
  if (seconds < 5e-6) return "0 ms";
  if (seconds < 0.9995) return `${digits(seconds * 1000)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

const digits = (value) => value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
const many = (number, word) => `${Number(number).toLocaleString()} ${word}${number === 1 ? "" : "s"}`;
const mean = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(1));

/** What a part is, without its time. */
export function details({ kind, steps, newTokens, tokens, used, bucket, drafts, accepted, stall, reason }) {
  const told = [];
  if (kind === "queued" && reason) told.push(REASONS[reason] ?? reason);
  if (kind === "prefix") told.push(many(tokens, "token"));
  if (kind === "retracted") told.push(`${many(tokens, "token")} lost`);
  if (kind === "mixed") told.push(many(steps, "step"));
  if (kind === "prefill") told.push(many(tokens, "token"), steps > 1 ? many(steps, "chunk") : "");
  if (kind === "decode" && steps !== 1) told.push(many(steps, "step"));
  if (newTokens && kind !== "prefix") told.push(`${kind === "prefill" ? "then " : ""}${many(newTokens, "new token")}`);
  if (kind === "decode" && !newTokens) told.push("no new token");
  if (bucket && kind === "decode") told.push(`batch of ${mean(used)} in a bucket of ${mean(bucket)}`);
  if (bucket && kind === "prefill") told.push(`${mean(used)} of ${mean(bucket)} tokens of the step used`);
  if (drafts) told.push(`${accepted} of ${many(drafts, "draft")} right`);
  if (stall) told.push(`${duration(stall)} of it compiling`);
  return told.filter(Boolean).join(", ");
}

/** Several neighbours as one. @param {Part[]} parts */
export function joined(parts) {
  if (parts.length === 1) return parts[0];
  const sum = (field) => parts.reduce((total, each) => total + each[field], 0);
  const times = new Map();
  for (const { kind, start, end } of parts) times.set(kind, (times.get(kind) ?? 0) + end - start);
  const kind = [...times].reduce((most, each) => (each[1] > most[1] ? each : most))[0];
  const alike = parts.filter((each) => each.kind === kind);
  const average = (field) => alike.reduce((total, each) => total + each[field] * Math.max(1, each.steps), 0) / alike.reduce((total, each) => total + Math.max(1, each.steps), 0);
  return {
    ...part(kind, parts[0].start, parts.at(-1).end - parts[0].start),
    ...Object.fromEntries(["steps", "newTokens", "tokens", "drafts", "accepted", "stall"].map((field) => [field, sum(field)])),
    used: average("used"),
    bucket: average("bucket"),
    reason: parts[0].reason,
  };
}
