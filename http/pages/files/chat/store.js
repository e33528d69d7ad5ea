// Conversations in the browser: IndexedDB, or memory where there is none. Messages are records of their own, so that a
// long conversation is never written as a whole.

const NAME = "palladio-chat";
const VERSION = 1;
export const MAX_CONVERSATIONS = 1000;

/** With words for the user. */
export class StoreError extends Error {}

const promised = (asked) =>
  new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });

function inWords(error) {
  if (error?.name === "QuotaExceededError") {
    return new StoreError("The browser has no more room for conversations. Export and delete some of them; what you write now is lost when the tab closes.");
  }
  return new StoreError(`The browser could not store this conversation (${error?.message ?? "no reason given"}); it is lost when the tab closes.`);
}

class BrowserStore {
  constructor(database) {
    this.database = database;
    this.isLasting = true;
  }

  async #write(names, change) {
    try {
      const transaction = this.database.transaction(names, "readwrite");
      change(...names.map((name) => transaction.objectStore(name)));
      await new Promise((resolve, reject) => {
        transaction.oncomplete = resolve;
        transaction.onerror = () => reject(transaction.error);
        transaction.onabort = () => reject(transaction.error);
      });
    } catch (error) {
      throw inWords(error);
    }
  }

  async list() {
    const all = await promised(this.database.transaction("conversations").objectStore("conversations").getAll());
    return all.sort((one, other) => other.updated - one.updated);
  }

  async messages(id) {
    const index = this.database.transaction("messages").objectStore("messages").index("conversation");
    const all = await promised(index.getAll(id));
    return all.sort((one, other) => one.created - other.created || one.order - other.order);
  }

  putConversation(conversation) {
    return this.#write(["conversations"], (store) => store.put(conversation));
  }

  putMessages(messages) {
    return this.#write(["messages"], (store) => messages.forEach((message) => store.put(message)));
  }

  removeMessages(ids) {
    return this.#write(["messages"], (store) => ids.forEach((id) => store.delete(id)));
  }

  async remove(id) {
    const index = this.database.transaction("messages").objectStore("messages").index("conversation");
    const keys = await promised(index.getAllKeys(id));
    await this.#write(["conversations", "messages"], (conversations, messages) => {
      conversations.delete(id);
      keys.forEach((key) => messages.delete(key));
    });
  }
}

class MemoryStore {
  constructor() {
    this.isLasting = false;
    this.conversations = new Map();
    this.byId = new Map();
  }

  async list() {
    return [...this.conversations.values()].sort((one, other) => other.updated - one.updated);
  }

  async messages(id) {
    return [...this.byId.values()].filter((message) => message.conversation === id);
  }

  async putConversation(conversation) {
    this.conversations.set(conversation.id, conversation);
  }

  async putMessages(messages) {
    messages.forEach((message) => this.byId.set(message.id, message));
  }

  async removeMessages(ids) {
    ids.forEach((id) => this.byId.delete(id));
  }

  async remove(id) {
    this.conversations.delete(id);
    for (const message of await this.messages(id)) this.byId.delete(message.id);
  }
}

/** The store of this browser; one in memory where it has none or refuses, as in some private windows. */
export async function openStore() {
  try {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return new BrowserStore(await promised(opening));
  } catch {
    return new MemoryStore();
  }
}

let unstored = {}; // preferences, where the browser stores nothing: they hold until the page is closed

/** Small settings of the page, in localStorage: the theme, and how the next conversation begins. */
export const preferences = {
  read() {
    try {
      const found = JSON.parse(localStorage.getItem("palladio.preferences") ?? "{}");
      return found && typeof found === "object" ? { ...found, ...unstored } : unstored;
    } catch {
      return unstored;
    }
  },
  write(changes) {
    const all = { ...preferences.read(), ...changes };
    try {
      localStorage.setItem("palladio.preferences", JSON.stringify(all));
      unstored = {};
    } catch {
      unstored = all;
    }
  },
};

const OPEN = "palladio.open"; // in sessionStorage: each tab has its own

/** The id of the conversation that this tab shows again after a reload; null: none. */
export const lastOpen = {
  read() {
    try {
      return sessionStorage.getItem(OPEN);
    } catch {
      return null;
    }
  },
  write(id) {
    try {
      if (id === null) sessionStorage.removeItem(OPEN);
      else sessionStorage.setItem(OPEN, id);
    } catch {
      // a reload then begins a new conversation
    }
  },
};
