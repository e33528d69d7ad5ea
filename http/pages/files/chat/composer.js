// The box for a message: text that grows, files, chips for what is set, and one button that sends or stops.

import { count, el, icon, iconButton } from "../shared/dom.js";
import { notice } from "./dialogs.js";
import { FileError, readFile } from "./files.js";

const MAX_FILES = 20;

export class Composer {
  /** @param {{onSend, onStop, onEditLast, takesPictures: () => boolean, onChip: (name: string) => void}} told */
  constructor(told) {
    this.told = told;
    this.form = document.getElementById("composer");
    this.prompt = document.getElementById("prompt");
    this.button = document.getElementById("send");
    this.attached = document.getElementById("attached");
    this.chips = document.getElementById("chips");
    this.context = document.getElementById("context");
    this.files = [];
    this.drafts = new Map();
    this.isBusy = false;
    const attach = document.getElementById("attach");
    const picker = document.getElementById("files");
    attach.append(icon("attach"));
    attach.addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => this.take([...picker.files]).then(() => (picker.value = "")));
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.#go()));
    this.prompt.addEventListener("input", () => this.#sized());
    this.prompt.addEventListener("keydown", (event) => this.#key(event));
    this.prompt.addEventListener("paste", (event) => {
      const pasted = [...(event.clipboardData?.files ?? [])];
      if (pasted.length) (event.preventDefault(), this.take(pasted));
    });
    const page = document.querySelector(".page");
    page.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && (event.preventDefault(), page.classList.add("dropping")));
    page.addEventListener("dragleave", (event) => page.contains(event.relatedTarget) || page.classList.remove("dropping"));
    page.addEventListener("drop", (event) => {
      page.classList.remove("dropping");
      if (event.dataTransfer.files.length) (event.preventDefault(), this.take([...event.dataTransfer.files]));
    });
    this.setBusy(false);
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !event.altKey && !matchMedia("(pointer: coarse)").matches) {
      event.preventDefault();
      if (!this.isBusy) this.#go();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (!this.isBusy) this.#go();
    } else if (event.key === "ArrowUp" && !this.prompt.value) {
      event.preventDefault();
      this.told.onEditLast();
    }
  }

  #go() {
    if (this.isBusy) {
      this.told.onStop();
      return;
    }
    const text = this.prompt.value;
    if (!text.trim() && !this.files.length) {
      this.prompt.focus();
      return;
    }
    if (this.told.onSend(text.trim(), this.files) === false) return;
    this.prompt.value = "";
    this.files = [];
    this.#sized();
    this.#drawFiles();
  }

  #sized() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight, innerHeight * 0.4)}px`;
    this.form.classList.toggle("empty-prompt", !this.prompt.value.trim() && !this.files.length);
  }

  async take(files) {
    for (const file of files) {
      if (this.files.length >= MAX_FILES) {
        notice(`A message takes at most ${MAX_FILES} files.`);
        break;
      }
      try {
        this.files.push(await readFile(file, { takesPictures: this.told.takesPictures() }));
      } catch (error) {
        if (!(error instanceof FileError)) throw error;
        notice(error.message);
      }
    }
    this.#drawFiles();
    this.#sized();
    this.prompt.focus();
  }

  #drawFiles() {
    this.attached.hidden = !this.files.length;
    this.attached.replaceChildren(
      ...this.files.map((file, place) => {
        const remove = () => {
          this.files.splice(place, 1);
          this.#drawFiles();
          this.#sized();
          this.prompt.focus();
        };
        const picture = file.blob && el("img", { src: URL.createObjectURL(file.blob), alt: "" });
        return el("span", { class: "file", role: "listitem" }, picture, el("span", {}, file.name), iconButton("close", `Remove ${file.name}`, remove));
      }),
    );
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    this.button.replaceChildren(icon(isBusy ? "stop" : "send"));
    this.button.setAttribute("aria-label", isBusy ? "Stop (Escape)" : "Send");
    this.button.title = isBusy ? "Stop (Escape)" : "Send (Enter)";
    this.button.classList.toggle("stop", isBusy);
    this.#sized();
  }

  /** What is set otherwise than usual. @param {[string, string][]} chips name, label */
  setChips(chips) {
    this.chips.replaceChildren(...chips.map(([name, label]) => el("button", { type: "button", class: "chip", title: `${label}: open the settings`, onclick: () => this.told.onChip(name) }, label)));
  }

  /** @param {number|null} used tokens @param {number|null} limit */
  setContext(used, limit) {
    this.context.hidden = used === null || limit === null;
    if (this.context.hidden) return;
    const left = Math.max(0, limit - used);
    this.context.classList.toggle("tight", left < limit * 0.15);
    this.context.replaceChildren(
      el("meter", { min: "0", max: String(limit), value: String(Math.min(used, limit)), "aria-label": `${count(used)} of ${count(limit)} tokens of context used` }),
      el("span", {}, `${count(left)} tokens left`),
    );
    this.context.title = `${count(used)} of ${count(limit)} tokens of context used`;
  }

  /** Keeps what is written for one conversation, and shows what was written for another. */
  swap(from, to) {
    this.drafts.set(from, { text: this.prompt.value, files: this.files });
    const { text = "", files = [] } = this.drafts.get(to) ?? {};
    this.prompt.value = text;
    this.files = files;
    this.#drawFiles();
    this.#sized();
  }

  fill(text) {
    this.prompt.value = text;
    this.#sized();
    this.focus();
  }

  focus() {
    this.prompt.focus();
  }
}
