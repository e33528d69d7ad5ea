// The list of conversations: open, find, rename, export, delete. On a narrow window it slides in.

import { el, icon, iconButton } from "../shared/dom.js";

const DAY = 86_400_000;

function groupOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  if (time >= today - 7 * DAY) return "Last seven days";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

export class Sidebar {
  /** @param {{onOpen, onNew, onRename, onExport, onDelete}} told */
  constructor(told) {
    this.told = told;
    this.panel = document.getElementById("sidebar");
    this.list = document.getElementById("conversations");
    this.find = document.getElementById("find");
    this.opener = document.getElementById("open-sidebar");
    const closer = document.getElementById("close-sidebar");
    this.opener.append(icon("menu"));
    closer.append(icon("close"));
    this.opener.addEventListener("click", () => this.slide(true));
    closer.addEventListener("click", () => this.slide(false));
    document.getElementById("backdrop").addEventListener("click", () => this.slide(false));
    const fresh = document.getElementById("new-chat");
    fresh.append(icon("plus"), "New conversation");
    fresh.addEventListener("click", () => (this.slide(false), told.onNew()));
    this.find.addEventListener("input", () => this.#draw());
    this.panel.addEventListener("keydown", (event) => event.key === "Escape" && this.isOpen && this.slide(false));
    this.narrow = matchMedia("(max-width: 50rem)");
    this.narrow.addEventListener("change", () => this.slide(false));
    this.slide(false);
  }

  get isOpen() {
    return this.panel.classList.contains("open");
  }

  /** On a narrow window: in or out. What is out takes no focus. */
  slide(isOpen) {
    const wasOpen = this.isOpen;
    this.panel.classList.toggle("open", isOpen);
    this.opener.setAttribute("aria-expanded", String(isOpen));
    this.panel.inert = this.narrow.matches && !isOpen;
    document.querySelector(".page").inert = this.narrow.matches && isOpen;
    if (isOpen) document.getElementById("close-sidebar").focus();
    else if (wasOpen) this.opener.focus();
  }

  show(all, current, isBusy) {
    Object.assign(this, { all, current, isBusy });
    this.#draw();
  }

  #draw() {
    const words = this.find.value.trim().toLowerCase();
    const found = this.all.filter(({ title }) => title.toLowerCase().includes(words));
    const groups = new Map();
    for (const each of found) {
      const name = groupOf(each.updated);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(each);
    }
    const shown = [...groups].flatMap(([name, each]) => [el("h2", { class: "group" }, name), el("ul", {}, ...each.map((one) => this.#entry(one)))]);
    if (!shown.length) shown.push(el("p", { class: "nothing" }, words ? "No title has these words." : "Conversations stay in this browser."));
    this.list.replaceChildren(...shown);
  }

  #entry(one) {
    const isCurrent = one.id === this.current.id;
    const open = el("button", { type: "button", class: "entry", "aria-current": isCurrent ? "page" : null, title: one.title, onclick: () => (this.slide(false), this.told.onOpen(one.id)) }, el("span", { dir: "auto" }, one.title), this.isBusy(one.id) && el("span", { class: "busy", role: "img", "aria-label": "being answered" }));
    const more = iconButton("more", `More about ${one.title}`, () => this.#menu(one, more), { "aria-haspopup": "true", "aria-expanded": "false" });
    return el("li", { class: isCurrent ? "current" : null }, open, more);
  }

  #menu(one, button) {
    const isOpen = button.getAttribute("aria-expanded") === "true";
    document.querySelectorAll(".menu").forEach((each) => each.remove());
    document.querySelectorAll("#conversations [aria-expanded=true]").forEach((each) => each.setAttribute("aria-expanded", "false"));
    if (isOpen) return;
    const close = () => {
      menu.remove();
      button.setAttribute("aria-expanded", "false");
      removeEventListener("pointerdown", outside);
    };
    const outside = (event) => !menu.contains(event.target) && !button.contains(event.target) && close();
    const item = (name, label, act) => el("button", { type: "button", onclick: () => (close(), act(one)) }, icon(name), label);
    const menu = el("div", { class: "menu" }, item("edit", "Rename", this.told.onRename), item("download", "Export", this.told.onExport), item("trash", "Delete", this.told.onDelete));
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
      button.focus();
    });
    addEventListener("pointerdown", outside);
    button.setAttribute("aria-expanded", "true");
    button.after(menu);
    menu.firstChild.focus();
  }
}
