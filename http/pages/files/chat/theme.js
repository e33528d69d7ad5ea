// Light or dark: as the system, or as the user says.

import { icon } from "../shared/dom.js";
import { preferences } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

export class Theme {
  /** @param {Element} button turns it, and shows what it would become */
  constructor(button) {
    this.button = button;
    button.addEventListener("click", () => this.turn());
    system.addEventListener("change", () => this.apply());
    this.apply();
  }

  apply() {
    const { theme = "" } = preferences.read();
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    this.isDark = theme ? theme === "dark" : system.matches;
    const label = this.isDark ? "Light theme" : "Dark theme";
    this.button.replaceChildren(icon(this.isDark ? "sun" : "moon"));
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }

  turn() {
    preferences.write({ theme: this.isDark ? "light" : "dark" });
    this.apply();
  }
}
