// The conversations of this browser: which there are, which one is open, and what is stored of them.

import { MAX_CONVERSATIONS, preferences, StoreError } from "./store.js";
import { withBlobs, withUrls } from "./files.js";
import { exportText, readImport } from "./transfer.js";
import { newId, titleOf, Tree } from "./tree.js";

export class Conversations {
  /**
   * @param {object} store
   * @param {{onChange: () => void, onTrouble: (words: string) => void, onGone: () => void, onMoved: () => void,
   *   isBusy: (id: string) => boolean}} told `onGone`, `onMoved`: the open one was deleted or changed in another tab
   */
  constructor(store, told) {
    Object.assign(this, { store, ...told });
    this.all = [];
    this.trees = new Map(); // of those that are open, or being answered
    this.current = this.fresh();
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel("palladio-chat") : null;
    this.channel?.addEventListener("message", () => this.reload());
  }

  /** One that is not stored before its first message. */
  fresh() {
    const { defaults = {}, model } = preferences.read();
    const now = Date.now();
    const conversation = { id: newId(), title: "New conversation", created: now, updated: now, active: null, settings: { ...defaults, model }, isNew: true };
    this.trees.set(conversation.id, new Tree());
    return conversation;
  }

  get tree() {
    return this.trees.get(this.current.id);
  }

  get path() {
    return this.tree.path(this.current.active);
  }

  async reload() {
    const found = await this.store.list();
    const known = new Map([...this.all, this.current].map((each) => [each.id, each])); // answers under way hold these
    const ids = new Set(found.map(({ id }) => id));
    const unstored = this.all.filter(({ id, isUnstored }) => isUnstored && !ids.has(id)); // there was no room
    this.all = [...unstored, ...found.map((each) => known.get(each.id) ?? each)];
    if (!this.current.isNew && !this.all.includes(this.current)) {
      this.current.isGone = true;
      this.onGone();
      return;
    }
    for (const each of found) if (known.has(each.id)) await this.#adopt(each, known.get(each.id));
    this.onChange();
  }

  /** Takes over what another tab has stored since; this tab's own answers and what it could not store go first. */
  async #adopt(stored, mine) {
    const isNewer = () => (stored.revision ?? 0) > (mine.revision ?? 0) && !mine.isUnstored;
    if (!isNewer()) return;
    Object.assign(mine, { title: stored.title, updated: stored.updated });
    if (this.isBusy(mine.id)) return;
    const tree = this.trees.get(mine.id);
    const messages = tree ? await this.store.messages(mine.id) : [];
    if (!isNewer() || this.isBusy(mine.id)) return;
    Object.assign(mine, stored);
    const isSame = (one, other) => one && one.content === other.content && one.finish === other.finish;
    if (tree) this.trees.set(mine.id, new Tree(messages.map((each) => (isSame(tree.get(each.id), each) ? tree.get(each.id) : each))));
    if (mine === this.current) this.onMoved();
  }

  /** @param {string|null} id null: a fresh one */
  async open(id, isBusy = () => false) {
    const before = this.current;
    const found = this.all.find((each) => each.id === id);
    this.current = found ?? this.fresh();
    if (found && !this.trees.has(id)) this.trees.set(id, new Tree(await this.store.messages(id)));
    if (before.id !== this.current.id && !isBusy(before.id)) this.trees.delete(before.id);
    if (found && !this.tree.get(found.active)) found.active = this.tree.newestLeaf();
    this.onChange();
  }

  /** A message more, which the conversation then ends with. */
  async add(message, conversation = this.current) {
    const tree = this.trees.get(conversation.id);
    const made = { id: newId(), conversation: conversation.id, created: Date.now(), order: tree.size, content: "", ...message };
    tree.add(made);
    conversation.active = made.id;
    if (conversation.isNew) {
      if (this.all.length >= MAX_CONVERSATIONS) this.onTrouble(`This browser keeps ${MAX_CONVERSATIONS} conversations; this one is not stored. Export and delete some first.`);
      else {
        delete conversation.isNew;
        this.all.unshift(conversation);
      }
    }
    if (tree.size === 1) conversation.title = titleOf(made.content || made.files?.[0]?.name || "");
    await this.save(conversation, [made]);
    return made;
  }

  /** Stores what has changed; trouble is told, and nothing fails for it. */
  async save(conversation, messages = [], { isQuiet = false } = {}) {
    if (conversation.isNew || conversation.isGone) return;
    conversation.updated = messages.length ? Date.now() : conversation.updated;
    if (!isQuiet) conversation.revision = (conversation.revision ?? 0) + 1;
    if (messages.length && !isQuiet) this.all = [conversation, ...this.all.filter((each) => each !== conversation)];
    try {
      if (messages.length) await this.store.putMessages(messages.map(({ timing: _timing, ...kept }) => kept));
      if (!isQuiet) {
        const { isUnstored: _isUnstored, ...kept } = conversation;
        await this.store.putConversation(kept);
        this.channel?.postMessage("changed");
      }
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      conversation.isUnstored = true;
      this.onTrouble(error.message);
    }
    if (!isQuiet) this.onChange();
  }

  async removeMessage(id) {
    const { tree, current } = this;
    const { parent } = tree.get(id);
    const gone = tree.remove(id);
    if (!tree.get(current.active)) current.active = tree.newestLeaf(parent);
    await this.store.removeMessages(gone);
    await this.save(current);
  }

  async remove(id) {
    for (const each of this.all) if (each.id === id) each.isGone = true; // what still answers there stores nothing
    await this.store.remove(id);
    this.all = this.all.filter((each) => each.id !== id);
    this.trees.delete(id);
    this.channel?.postMessage("changed");
    if (this.current.id === id) await this.open(null);
    else this.onChange();
  }

  async removeAll() {
    for (const each of this.all.slice()) {
      each.isGone = true;
      await this.store.remove(each.id);
    }
    this.all = [];
    this.trees.clear();
    this.channel?.postMessage("changed");
    await this.open(null);
  }

  /** @param {object[]} chosen conversations */
  async exportOf(chosen) {
    const found = [];
    for (const conversation of chosen) {
      const tree = this.trees.get(conversation.id);
      const messages = tree ? [...tree.byId.values()] : await this.store.messages(conversation.id);
      found.push({ conversation, messages: await withUrls(messages) });
    }
    return exportText(found);
  }

  /** @returns {Promise<number>} how many came in @throws {ImportError} */
  async importText(text) {
    const found = readImport(text);
    if (this.all.length + found.length > MAX_CONVERSATIONS) {
      this.onTrouble(`This browser keeps ${MAX_CONVERSATIONS} conversations; the file has too many. Delete some first.`);
      return 0;
    }
    let number = 0;
    try {
      for (const { conversation, messages } of found) {
        await this.store.putMessages(withBlobs(messages).map((message, order) => ({ ...message, order })));
        await this.store.putConversation(conversation);
        number += 1;
      }
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      this.onTrouble(error.message);
    }
    await this.reload();
    if (number) await this.open(found[0].conversation.id);
    this.channel?.postMessage("changed");
    return number;
  }
}
