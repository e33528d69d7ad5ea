// Files of a message: text goes into the prompt; pictures where the model takes them.

const MAX_TEXT = 2 << 20; // bytes of a text file
const MAX_PICTURE = 20 << 20;
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** In words for the user. */
export class FileError extends Error {}

/**
 * @param {File} file
 * @param {{takesPictures: boolean}} server
 * @returns {Promise<object>} name, type, size, and `text` or `blob`
 * @throws {FileError}
 */
export async function readFile(file, { takesPictures }) {
  const known = { name: file.name || "file", type: file.type, size: file.size };
  if (PICTURES.has(file.type)) {
    if (!takesPictures) throw new FileError(`${known.name} is a picture, and this model takes only text.`);
    if (file.size > MAX_PICTURE) throw new FileError(`${known.name} has more than 20 MB.`);
    return { ...known, blob: new Blob([await file.arrayBuffer()], { type: file.type }) };
  }
  if (/^(image|audio|video)\//.test(file.type) && file.type !== "image/svg+xml") throw new FileError(`${known.name} cannot be used: this model does not take files of the type ${file.type}.`);
  if (file.size > MAX_TEXT) throw new FileError(`${known.name} has more than 2 MB, which is more text than fits a prompt.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (text.includes("\0")) throw new TypeError("binary");
    return { ...known, text };
  } catch {
    throw new FileError(`${known.name} is not a text file. Only text, and pictures where the model takes them, can be sent.`);
  }
}

/** A blob as a data URL. */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Back again; the policy of this page lets nothing fetch a data URL. */
export function blobOf(url) {
  const [head, data] = url.split(",", 2);
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: head.slice(5).split(";")[0] });
}

/** Pictures of messages for a request: by the message's id and the file's place. */
export async function picturesOf(path) {
  const found = new Map();
  for (const message of path) {
    for (const [place, file] of (message.files ?? []).entries()) {
      if (file.blob) found.set(`${message.id}/${place}`, await dataUrl(file.blob));
    }
  }
  return found;
}

/** Messages for an export: their pictures as data URLs. */
export async function withUrls(messages) {
  return Promise.all(
    messages.map(async (message) => {
      const { timing: _timing, explanation: _explanation, ...kept } = message;
      if (!kept.files) return kept;
      const files = await Promise.all(kept.files.map(async ({ blob, ...file }) => (blob ? { ...file, url: await dataUrl(blob) } : file)));
      return { ...kept, files };
    }),
  );
}

/** And of an import: as blobs. */
export function withBlobs(messages) {
  return messages.map((message) => (message.files ? { ...message, files: message.files.map(({ url, ...file }) => (url ? { ...file, blob: blobOf(url) } : file)) } : message));
}
