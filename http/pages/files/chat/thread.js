// The messages of a conversation as a list. All are there as text; those near the window are drawn in full.

import { el } from "../shared/dom.js";
import { MessageView } from "./message_view.js";

const NEAR = "1200px"; // above and below the window
const MOST = 30; // milliseconds in which messages are drawn one after the other
const GROUP = 20; // messages that the browser lays out, and we draw, together: what is far away costs nothing

export class Thread {
  /**
   * @param {Element} scroller
   * @param {Element} list
   * @param {Element} jump a button that leads to the end
   * @param {(view: MessageView) => object} placeOf what a view has to know of the conversation
   */
  constructor(scroller, list, jump, placeOf) {
    Object.assign(this, { scroller, list, jump, placeOf });
    this.views = [];
    this.isAtEnd = true;
    this.observer = new IntersectionObserver((entries) => this.#draw(entries), { root: scroller, rootMargin: `${NEAR} 0px` });
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.#letGo(), { passive: true });
    scroller.addEventListener("touchmove", () => this.#letGo(), { passive: true });
    jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(list); // formulas, drawings and pictures come later
  }

  #letGo() {
    this.isHeld = false;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < 60;
    if (this.isAtEnd) this.isHeld = true;
    this.jump.hidden = this.isAtEnd || this.views.length === 0;
  }

  #draw(entries) {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      this.observer.unobserve(target);
      target.isDrawn = true;
      this.#drawAll([...target.children]);
    }
  }

  /** In several tasks, if it takes long: the page answers meanwhile. */
  #drawAll(elements) {
    const begun = performance.now();
    while (elements.length && performance.now() - begun < MOST) elements.shift().view.draw();
    if (elements.length) setTimeout(() => this.#drawAll(elements));
  }

  /** Shows these messages; what is shown already stays as it is. */
  show(messages) {
    this.list.classList.remove("is-empty");
    this.list.querySelector(":scope > .empty")?.remove();
    let same = 0;
    while (same < messages.length && this.views[same]?.message === messages[same]) same += 1;
    for (const view of this.views.splice(same)) {
      const group = view.element.parentNode;
      view.element.remove();
      if (!group.firstChild) {
        this.observer.unobserve(group);
        group.remove();
      }
    }
    for (const message of messages.slice(same)) this.#append(new MessageView(message, this.placeOf(message)));
    for (const view of this.views.slice(Math.max(0, same - 2))) {
      view.place = this.placeOf(view.message);
      if (view.isDrawn) view.drawFooter();
    }
  }

  #append(view) {
    view.element.view = view;
    let group = this.list.lastElementChild;
    if (!group || group.children.length >= GROUP) {
      group = el("div", { class: "span" });
      this.list.append(group);
      this.observer.observe(group);
    }
    group.append(view.element);
    this.views.push(view);
    if (group.isDrawn) view.draw();
  }

  clear() {
    this.show([]);
    this.jump.hidden = true;
  }

  view(id) {
    return this.views.find((view) => view.message.id === id);
  }

  viewOf(element) {
    return element.closest("article.message")?.view ?? null;
  }

  /** After something has grown: stays at the end, if the reader is there. */
  follow() {
    if (this.isHeld) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  toEnd() {
    this.isHeld = true;
    this.views.at(-1)?.draw();
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#scrolled();
  }

  /** In place of messages. */
  empty(...nodes) {
    this.clear();
    this.list.classList.add("is-empty");
    this.list.replaceChildren(el("div", { class: "empty" }, ...nodes));
  }
}
