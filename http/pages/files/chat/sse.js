// Server-sent events out of a stream of bytes.

const MAX_EVENT = 8 << 20; // characters of one event: more is no answer of this server

/**
 * The data of each event, as text.
 * @param {ReadableStream<Uint8Array>} stream
 * @throws {RangeError} an event has no end
 */
export async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      const lastBreak = Math.max(rest.lastIndexOf("\n\n"), rest.lastIndexOf("\r\n\r\n"));
      if (lastBreak < 0) {
        if (rest.length > MAX_EVENT) throw new RangeError("an event of the stream has no end");
        continue;
      }
      const whole = rest.slice(0, lastBreak);
      rest = rest.slice(lastBreak).replace(/^[\r\n]+/, "");
      for (const event of whole.split(/\r?\n\r?\n/)) {
        const data = dataOf(event);
        if (data !== null) yield data;
      }
    }
    const data = dataOf(rest);
    if (data !== null) yield data;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The lines after `data:`, joined; null: there are none. Comments keep a connection open, and say nothing. */
export function dataOf(event) {
  const lines = event
    .split(/\r?\n/)
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""));
  return lines.length ? lines.join("\n") : null;
}
