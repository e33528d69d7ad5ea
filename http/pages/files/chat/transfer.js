// Conversations as a file, and back. What is read may come from anywhere: it is checked, and only known fields are kept.

import { newId, titleOf, Tree } from "./tree.js";

export const FORMAT = "palladio.chat/1";
export const MAX_IMPORT = 256 << 20; // bytes of a file
const MAX_MESSAGES = 200_000;
const ROLES = new Set(["user", "assistant", "tool"]);

export class ImportError extends Error {}

/** @param {{conversation: object, messages: object[]}[]} all files of messages hold their pictures as data URLs */
export function exportText(all) {
  const conversations = all.map(({ conversation, messages }) => ({ ...conversation, messages }));
  return JSON.stringify({ format: FORMAT, exported: new Date().toISOString(), conversations }, null, 1);
}

/**
 * Reads a file of ours, or a list of OpenAI's messages. Ids are new, so that an import never replaces anything.
 * @returns {{conversation: object, messages: object[]}[]}
 * @throws {ImportError} with words for the user
 */
export function readImport(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new ImportError("The file is not JSON.");
  }
  if (Array.isArray(data) || Array.isArray(data?.messages)) {
    const list = Array.isArray(data) ? data : data.messages;
    if (list.length && list.every((each) => typeof each?.role === "string")) return [ofList(list)];
  }
  if (data?.format !== FORMAT || !Array.isArray(data.conversations)) {
    throw new ImportError("The file is not an export of this page, and not a list of messages with a role and content.");
  }
  return data.conversations.map(ofExport);
}

function ofExport(given, position) {
  if (!Array.isArray(given?.messages)) throw new ImportError(`Conversation ${position + 1} has no messages.`);
  if (given.messages.length > MAX_MESSAGES) throw new ImportError(`Conversation ${position + 1} has more than ${MAX_MESSAGES} messages.`);
  const id = newId();
  const ids = new Map(given.messages.map((each) => [each?.id, newId()]));
  const messages = given.messages.filter((each) => ROLES.has(each?.role)).map((each) => cleaned(each, id, ids));
  if (messages.length !== given.messages.length) throw new ImportError(`Conversation ${position + 1} has a message of an unknown role.`);
  if (new Tree(messages).size !== messages.length) throw new ImportError(`Conversation ${position + 1} has messages with the same id, or that follow each other in a ring.`);
  const conversation = {
    id,
    title: string(given.title, 200) || "Imported conversation",
    created: number(given.created) ?? Date.now(),
    updated: number(given.updated) ?? Date.now(),
    active: ids.get(given.active) ?? messages.at(-1)?.id ?? null,
    settings: plain(given.settings),
  };
  return { conversation, messages };
}

function cleaned(each, conversation, ids) {
  const message = {
    id: ids.get(each.id),
    conversation,
    parent: ids.get(each.parent) ?? null,
    role: each.role,
    content: string(each.content),
    created: number(each.created) ?? Date.now(),
  };
  for (const name of ["thinking", "model", "finish", "callId", "name", "requestId"]) {
    if (typeof each[name] === "string" && each[name]) message[name] = each[name];
  }
  for (const name of ["speed", "seconds", "thinkingSeconds"]) {
    if (number(each[name]) !== null) message[name] = each[name];
  }
  if (Array.isArray(each.calls)) message.calls = each.calls.map(cleanCall);
  if (Array.isArray(each.files)) message.files = each.files.map(cleanFile).filter(Boolean);
  if (typeof each.error?.message === "string") message.error = { message: each.error.message };
  if (each.usage && typeof each.usage === "object") {
    message.usage = { prompt_tokens: number(each.usage.prompt_tokens) ?? 0, completion_tokens: number(each.usage.completion_tokens) ?? 0 };
  }
  return message;
}

const cleanCall = (call) => ({ id: string(call?.id), name: string(call?.name), arguments: string(call?.arguments) });

function cleanFile(file) {
  const known = { name: string(file?.name, 200) || "file", type: string(file?.type, 100), size: number(file?.size) ?? 0 };
  if (typeof file?.text === "string") return { ...known, text: file.text };
  if (typeof file?.url === "string" && isPicture(file.url)) return { ...known, url: file.url };
  return null;
}

const isPicture = (url) => /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$/.test(url) && (url.length - url.indexOf(",") - 1) % 4 === 0;

function ofList(list) {
  const id = newId();
  const settings = {};
  const messages = [];
  for (const each of list) {
    const content = typeof each.content === "string" ? each.content : textOf(each.content);
    if (each.role === "system" || each.role === "developer") settings.system = content;
    else if (!ROLES.has(each.role)) throw new ImportError(`A message has the unknown role ${JSON.stringify(each.role)}.`);
    else {
      const calls = Array.isArray(each.tool_calls)
        ? each.tool_calls.map((call) => cleanCall({ id: call?.id, name: call?.function?.name, arguments: call?.function?.arguments }))
        : null;
      messages.push({
        id: newId(),
        conversation: id,
        parent: messages.at(-1)?.id ?? null,
        role: each.role,
        content,
        created: Date.now(),
        ...(calls && { calls }),
        ...(each.role === "tool" && { callId: string(each.tool_call_id) }),
      });
    }
  }
  if (!messages.length) throw new ImportError("The file has no messages.");
  const title = titleOf(messages[0].content);
  const now = Date.now();
  return { conversation: { id, title, created: now, updated: now, active: messages.at(-1).id, settings }, messages };
}

const textOf = (parts) => (Array.isArray(parts) ? parts.map((part) => string(part?.text)).filter(Boolean).join("\n") : "");
const string = (value, limit = Infinity) => (typeof value === "string" ? value.slice(0, limit) : "");
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** The settings of a conversation: all are strings, as their fields have them. */
function plain(settings) {
  const known = Object.entries(settings && typeof settings === "object" ? settings : {});
  return Object.fromEntries(known.filter(([name, value]) => name !== "__proto__" && ["string", "number"].includes(typeof value)).map(([name, value]) => [name, String(value)]));
}
