// A conversation's messages as a tree: an edit or a new answer is one more branch, and nothing is lost.

/** An id that no other message has. */
export const newId = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;

/**
 * A message: `id`, `parent` (an id; null: the conversation begins with it), `role` ("user", "assistant" or "tool"),
 * `content`, `created` (milliseconds), and what its role brings: `files`; `thinking`, `calls`, `finish`, `usage`,
 * `speed`, `model`, `error`, `tokens`, `explanation`; `callId`, `name`.
 */
export class Tree {
  /**
   * @param {Iterable<object>} messages in the order in which they were made, or nearly, since clocks are set back; those
   *   that nothing ties to a first message are left out
   */
  constructor(messages = []) {
    this.byId = new Map();
    this.children = new Map([[null, []]]);
    const early = new Map(); // parent → messages that came before it
    for (const message of messages) {
      const open = [message];
      while (open.length) {
        const next = open.pop();
        if (this.children.has(next.parent)) {
          this.add(next);
          open.push(...(early.get(next.id) ?? []).reverse());
          early.delete(next.id);
        } else if (early.has(next.parent)) early.get(next.parent).push(next);
        else early.set(next.parent, [next]);
      }
    }
  }

  add(message) {
    if (this.byId.has(message.id) || !this.children.has(message.parent)) return;
    this.byId.set(message.id, message);
    this.children.set(message.id, []);
    this.children.get(message.parent).push(message.id);
  }

  get(id) {
    return this.byId.get(id);
  }

  get size() {
    return this.byId.size;
  }

  /** From the first message to this one. */
  path(leaf) {
    const found = [];
    for (let message = this.byId.get(leaf); message; message = this.byId.get(message.parent)) found.push(message);
    return found.reverse();
  }

  /** The branches at a message: the ids of all with its parent. */
  siblings(id) {
    const message = this.byId.get(id);
    return message ? this.children.get(message.parent) : [];
  }

  /** The end of the newest branch below a message, or below the root. */
  newestLeaf(id = null) {
    let leaf = id;
    for (let below = this.children.get(leaf); below?.length; below = this.children.get(leaf)) leaf = below.at(-1);
    return leaf;
  }

  /** Takes a message and all below it out; returns their ids. */
  remove(id) {
    const gone = [];
    const open = [id];
    while (open.length) {
      const next = open.pop();
      gone.push(next);
      open.push(...(this.children.get(next) ?? []));
    }
    const siblings = this.siblings(id);
    siblings.splice(siblings.indexOf(id), 1);
    for (const each of gone) {
      this.byId.delete(each);
      this.children.delete(each);
    }
    return gone;
  }
}

/** A title out of the first message: its first line, cut at a word. */
export function titleOf(text, limit = 60) {
  const line = text.trimStart().slice(0, 10 * limit).split("\n").map((each) => each.trim()).find(Boolean) ?? "";
  const plain = line.replace(/^#+\s*|[`*_]/g, "");
  if (plain.length <= limit) return plain || "New conversation";
  const cut = plain.slice(0, limit);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), limit / 2))}…`;
}
