// The chat page: puts its parts together.

import { apiKey, ApiError, onKeyNeeded, setApiKey } from "../shared/api.js";
import { download, el, icon, wireSkipLink } from "../shared/dom.js";
import { Announcer } from "./announcer.js";
import { Answers } from "./answers.js";
import { speedOf } from "./answer.js";
import { Composer } from "./composer.js";
import { Conversations } from "./conversations.js";
import { askText, confirmed, notice, openDialog } from "./dialogs.js";
import { MessageActions } from "./message_actions.js";
import { Server } from "./server.js";
import { openSettings } from "./settings_view.js";
import { Sidebar } from "./sidebar.js";
import { lastOpen, openStore, preferences } from "./store.js";
import { Theme } from "./theme.js";
import { Thread } from "./thread.js";
import { ImportError, MAX_IMPORT } from "./transfer.js";

const KEYS = [
  ["Enter", "send"],
  ["Shift + Enter", "begin a new line"],
  ["Escape", "stop the answer"],
  ["↑ in an empty box", "edit the last message"],
  ["Ctrl + Shift + O", "new conversation"],
  ["Ctrl + K", "find a conversation"],
  ["Ctrl + ,", "settings"],
  ["/", "go to the message box"],
  ["?", "this list"],
];
const EMBEDDED = /^palladio-default-/; // the model that comes with the package
const IDEAS = ["Explain how a suspension bridge carries its load", "Write a Python function that merges two sorted lists", "Compare three ways to brew coffee, as a table"];

class ChatPage {
  constructor(store) {
    const byId = (id) => document.getElementById(id);
    this.state = byId("state");
    this.model = byId("model");
    this.announcer = new Announcer(byId("announcer"));
    this.server = new Server((state) => this.#stateChanged(state));
    this.conversations = new Conversations(store, { onChange: () => this.#drawList(), onTrouble: (words) => notice(words), onGone: () => this.#gone(), onMoved: () => this.#moved(), isBusy: (id) => this.answers.isBusy(id) });
    this.answers = new Answers(this.conversations, this.server, {
      onBegin: (run) => this.#began(run),
      onFrame: (run, now) => this.#frame(run, now),
      onWait: (run, words) => this.#shown(run)?.wait(words),
      onEnd: (run) => this.#ended(run),
    });
    this.thread = new Thread(byId("thread"), byId("messages"), byId("jump"), (message) => this.#placeOf(message));
    this.composer = new Composer({
      onSend: (text, files) => this.#send(text, files),
      onStop: () => this.answers.stop(this.conversations.current.id),
      onEditLast: () => this.#editLast(),
      takesPictures: () => this.server.takes("image"),
      onChip: (name) => this.openSettings(name),
    });
    this.sidebar = new Sidebar({
      onOpen: (id) => this.open(id),
      onNew: () => this.open(null),
      onRename: (one) => this.#rename(one),
      onExport: async (one) => this.#export([one], one.title),
      onDelete: (one) => this.#delete(one),
    });
    this.actions = new MessageActions(this);
    this.#wire(byId);
    wireSkipLink();
    this.store = store;
  }

  #wire(byId) {
    byId("jump").append(icon("down"), "Latest");
    byId("open-settings").append(icon("settings"));
    byId("open-settings").addEventListener("click", () => this.openSettings());
    this.theme = new Theme(byId("theme"));
    this.model.addEventListener("change", () => {
      this.conversations.current.settings.model = this.model.value;
      preferences.write({ model: this.model.value });
      this.conversations.save(this.conversations.current);
      this.#drawContext();
    });
    document.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("beforeunload", (event) => this.answers.runs.size && !this.store.isLasting && event.preventDefault());
    onKeyNeeded((wasWrong) => askText("API key", "Key", "", { type: "password", hint: wasWrong ? "The server does not take this key." : "This server asks for a key. This tab keeps it until it is closed.", button: "Continue" }));
  }

  async start() {
    if (!this.store.isLasting) notice("This browser does not let the page store conversations. They are lost when the tab closes.");
    await this.conversations.reload();
    const last = lastOpen.read();
    await this.open(this.conversations.all.some(({ id }) => id === last) ? last : null);
    await this.loadServer();
  }

  async loadServer() {
    try {
      await this.server.load();
      this.#drawModels();
      this.#drawContext();
      if (!this.server.writesText) notice("This server's model does not write answers: it makes embeddings or classes, or has no chat template.");
      if (!this.conversations.path.length) this.show();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.isTemporary) this.server.whenReady(new AbortController().signal).then(() => this.loadServer());
      else notice(error.message, ["Try again", () => this.loadServer()]);
    }
  }

  // What is shown

  #stateChanged(state) {
    this.state.textContent = state === "ready" ? "" : `Server: ${state}`;
    this.state.classList.toggle("trouble", state !== "ready");
    if (state === "ready" && this.hadTrouble) {
      this.announcer.say("The server is ready again.");
      this.loadServer();
    }
    this.hadTrouble = state !== "ready";
  }

  #drawModels() {
    const { models } = this.server;
    const wanted = this.conversations.current.settings.model;
    const option = ({ id }) => el("option", { value: id, selected: id === wanted }, id);
    const ids = new Set(models.map(({ id }) => id));
    const isAdapter = ({ parent }) => parent && ids.has(parent);
    const adapters = models.filter(isAdapter);
    this.model.replaceChildren(...models.filter((each) => !isAdapter(each)).map(option));
    if (adapters.length) this.model.append(el("optgroup", { label: "Adapters" }, ...adapters.map(option)));
    this.model.disabled = models.length === 0;
    this.conversations.current.settings.model = this.model.value;
  }

  #drawList() {
    this.sidebar.show(this.conversations.all, this.conversations.current, (id) => this.answers.isBusy(id));
    document.title = this.conversations.current.isNew ? "Palladio" : `${this.conversations.current.title} – Palladio`;
  }

  #drawContext() {
    const { path, current } = this.conversations;
    const usage = path.findLast(({ usage: known }) => known)?.usage;
    this.composer.setContext(usage ? usage.prompt_tokens + usage.completion_tokens : null, this.server.contextOf(current.settings.model));
    const { settings } = current;
    const names = { system: "System prompt", schema: "JSON schema", tools: "Tools" };
    const chips = Object.entries(names).filter(([name]) => settings[name]?.trim() && (name !== "schema" || settings.format === "schema"));
    if (settings.format === "json") chips.push(["format", "JSON"]);
    if (settings.thinking) chips.push(["thinking", `Thinking ${settings.thinking}`]);
    this.composer.setChips(chips);
  }

  #placeOf(message) {
    const { tree } = this.conversations;
    return {
      siblings: tree.siblings(message.id),
      canContinue: true,
      hasResult: (callId) => this.conversations.path.some(({ role, callId: of }) => role === "tool" && of === callId),
    };
  }

  /** The open conversation, as it is. */
  show() {
    const { path } = this.conversations;
    if (!path.length) this.#showEmpty();
    else this.thread.show(path);
    this.composer.setBusy(this.answers.isBusy(this.conversations.current.id));
    this.#drawContext();
  }

  #showEmpty() {
    const isReady = this.server.models.length > 0;
    this.thread.empty(
      el("img", { src: document.querySelector(".brand img").src, alt: "", width: "56", height: "56" }),
      el("p", { class: "greeting" }, "What is on your mind?"),
      el("p", { class: "small-print" }, isReady ? `${this.model.value} answers. Conversations stay in this browser.` : "Conversations stay in this browser."),
      EMBEDDED.test(this.model.value) && el("p", { class: "small-print" }, "It is tiny and makes mistakes. For a published model: ", el("code", {}, "palladio serve smollm2")),
      el("div", { class: "ideas" }, ...IDEAS.map((idea) => el("button", { type: "button", onclick: () => this.composer.fill(idea) }, idea))),
    );
  }

  async open(id) {
    const from = this.conversations.current.id;
    try {
      await this.conversations.open(id, (each) => this.answers.isBusy(each));
    } catch (error) {
      notice(`The conversation could not be read: ${error.message}`);
      return;
    }
    const { current } = this.conversations;
    if (current.id !== from) this.composer.swap(from, current.id);
    lastOpen.write(current.isNew ? null : current.id);
    this.thread.clear();
    this.show();
    if (this.server.models.length) this.#drawModels();
    const run = this.answers.runs.get(current.id);
    if (run) this.#shown(run)?.begin();
    this.thread.toEnd();
    this.composer.focus();
  }

  // Answers

  #send(text, files) {
    if (this.answers.isBusy(this.conversations.current.id)) return false;
    if (!this.server.models.length) {
      notice("The server has not said which models it has; it may still be starting.", ["Try again", () => this.loadServer()]);
      return false;
    }
    this.conversations.add({ role: "user", parent: this.conversations.current.active, content: text, ...(files.length && { files }) }).then((made) => this.answer(made.id));
    return true;
  }

  /** A new answer to a message; other answers to it stay as branches. */
  async answer(parent) {
    const { current } = this.conversations;
    if (this.answers.isBusy(current.id)) return;
    const message = await this.conversations.add({ role: "assistant", parent, model: this.model.value });
    lastOpen.write(current.id);
    await this.answers.run(current, message);
  }

  /** An answer that was cut off goes on. */
  async resume(message) {
    const { current } = this.conversations;
    if (!this.answers.isBusy(current.id)) await this.answers.run(current, message, { continues: true });
  }

  /** The view of a run's message, if its conversation is open. */
  #shown(run) {
    return run.conversation.id === this.conversations.current.id ? this.thread.view(run.message.id) : null;
  }

  #began(run) {
    this.#drawList();
    if (run.conversation.id !== this.conversations.current.id) return;
    this.show();
    this.#shown(run)?.begin();
    this.thread.toEnd();
    this.announcer.begin();
  }

  #frame(run, now) {
    const view = this.#shown(run);
    if (!view?.stream) return;
    view.frame(now);
    this.announcer.grow(run.message.content);
    if (now - (this.factsAt ?? 0) > 400) {
      this.factsAt = now;
      const speed = speedOf(run.message);
      const { events } = run.message.timing;
      view.footer.querySelector(".facts").textContent = speed ? `${events} tokens · ${speed < 10 ? speed.toFixed(1) : Math.round(speed)} tokens/s` : "";
    }
    this.thread.follow();
  }

  #ended(run) {
    const view = this.#shown(run);
    this.#drawList();
    if (!view) return;
    view.place = this.#placeOf(run.message);
    view.end();
    this.composer.setBusy(false);
    this.#drawContext();
    this.thread.follow();
    const { error, finish } = run.message;
    this.announcer.end(run.message.content, error ? error.message : finish === "stopped" ? "Stopped." : "End of the answer.");
    if (preferences.read().timeline && run.message.requestId) {
      this.actions.showTimeline(view).catch((problem) => problem instanceof ApiError || Promise.reject(problem));
    }
  }

  #editLast() {
    const view = this.thread.views.findLast(({ message }) => message.role === "user");
    if (!view) return;
    view.draw();
    this.actions.edit(view);
  }

  // Conversations and settings

  async #rename(one) {
    const title = await askText("Rename", "Title", one.title);
    if (title === null) return;
    one.title = title.slice(0, 200);
    await this.conversations.save(one);
  }

  #gone() {
    const { current } = this.conversations;
    this.answers.stop(current.id);
    notice(`“${current.title}” was deleted in another tab.`);
    this.open(null);
  }

  #moved() {
    this.show();
    this.#drawModels();
    this.thread.follow();
  }

  async #export(chosen, name) {
    const safe = name.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation";
    download(`${safe}.json`, await this.conversations.exportOf(chosen));
  }

  async #delete(one) {
    if (!(await confirmed("Delete this conversation?", `“${one.title}” is stored only here. It cannot be brought back.`, "Delete"))) return;
    this.answers.stop(one.id);
    const wasCurrent = one.id === this.conversations.current.id;
    await this.conversations.remove(one.id);
    if (wasCurrent) await this.open(null);
  }

  async import(file) {
    try {
      if (file.size > MAX_IMPORT) throw new ImportError("The file has more than 256 MB.");
      const number = await this.conversations.importText(await file.text());
      await this.open(this.conversations.current.id);
      if (number) this.announcer.say(`${number} conversations imported.`);
    } catch (error) {
      if (!(error instanceof ImportError)) throw error;
      notice(`The file was not imported. ${error.message}`);
    }
  }

  openSettings(focus) {
    const { current } = this.conversations;
    openSettings(current.settings, preferences.read(), {
      server: this.server,
      focus,
      onSettings: (name, value) => {
        if (value === "") delete current.settings[name];
        else current.settings[name] = value;
        this.conversations.save(current);
        this.#drawContext();
      },
      onPage: (name, value) => {
        preferences.write({ [name]: value });
        if (name === "theme") this.theme.apply();
      },
      onDefaults: () => {
        const { model: _model, ...kept } = current.settings;
        preferences.write({ defaults: kept });
      },
      onExport: () => this.#export(this.conversations.all, "palladio-conversations"),
      onImport: () => this.#pick(),
      onDeleteAll: async () => {
        if (!(await confirmed("Delete all conversations?", "They are stored only in this browser. They cannot be brought back.", "Delete all"))) return;
        for (const id of this.answers.runs.keys()) this.answers.stop(id);
        await this.conversations.removeAll();
        await this.open(null);
      },
      onForgetKey: () => {
        setApiKey(null);
        if (apiKey() === null) this.announcer.say("The key is forgotten.");
      },
    });
  }

  #pick() {
    const picker = el("input", { type: "file", accept: "application/json,.json", id: "import-file", "aria-label": "File to import", hidden: true });
    picker.addEventListener("change", () => picker.files[0] && this.import(picker.files[0]).finally(() => picker.remove()));
    picker.addEventListener("cancel", () => picker.remove());
    document.getElementById("import-file")?.remove();
    document.body.append(picker);
    picker.click();
  }

  // Keys

  #key(event) {
    if (document.getElementById("dialog").open) return;
    const isText = event.target.closest("input, textarea, select");
    const isCommand = event.ctrlKey || event.metaKey;
    const { current } = this.conversations;
    const acts = [
      [event.key === "Escape" && this.answers.isBusy(current.id), () => this.answers.stop(current.id)],
      [isCommand && event.shiftKey && event.key.toLowerCase() === "o", () => this.open(null)],
      [isCommand && event.key.toLowerCase() === "k", () => (this.sidebar.narrow.matches && this.sidebar.slide(true), document.getElementById("find").focus())],
      [isCommand && event.key === ",", () => this.openSettings()],
      [event.key === "/" && !isText, () => this.composer.focus()],
      [event.key === "?" && !isText, () => this.#help()],
    ];
    const found = acts.find(([fits]) => fits);
    if (!found) return;
    event.preventDefault();
    found[1]();
  }

  #help() {
    openDialog("Keys", [el("dl", { class: "keys" }, ...KEYS.flatMap(([keys, what]) => [el("dt", {}, el("kbd", {}, keys)), el("dd", {}, what)]))], []);
  }
}

const page = new ChatPage(await openStore());
await page.start();
