// Dialogs and notices. The browser's own <dialog> keeps the focus inside, and gives it back.

import { el, iconButton } from "../shared/dom.js";

const dialog = document.getElementById("dialog");
let finish = null;

dialog.addEventListener("close", () => {
  if (dialog.open) return; // the event of a dialog before, after which this one was opened at once
  const done = finish;
  finish = null;
  dialog.replaceChildren();
  done?.(dialog.returnValue);
});
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close(""));

/**
 * @param {string} title
 * @param {Node[]} content
 * @param {[string, string, string?][]} buttons value, label, class; the first is the default one
 * @returns {Promise<string>} the value of the button; "" if it was closed otherwise
 */
export function openDialog(title, content, buttons, { wide = false } = {}) {
  finish?.("");
  if (dialog.open) dialog.close("");
  dialog.className = wide ? "wide" : "";
  const form = el(
    "form",
    { onsubmit: (event) => (event.preventDefault(), dialog.close(buttons[0]?.[0] ?? "")) },
    el("div", { class: "dialog-head" }, el("h2", { id: "dialog-title" }, title), iconButton("close", "Close", () => dialog.close(""))),
    el("div", { class: "dialog-body" }, ...content),
    buttons.length
      ? el(
          "div",
          { class: "dialog-foot" },
          ...buttons
            .map(([value, label, kind], place) => el("button", { type: place ? "button" : "submit", class: kind ?? (place ? "quiet" : "primary"), onclick: place ? () => dialog.close(value) : null }, label))
            .reverse(),
        )
      : null,
  );
  dialog.replaceChildren(form);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    finish = resolve;
  });
}

export const closeDialog = () => dialog.close("");

/** Yes or no. */
export async function confirmed(title, text, label) {
  return (await openDialog(title, [el("p", {}, text)], [["yes", label, "danger"], ["", "Cancel", "quiet"]])) === "yes";
}

/** A line of text; null: cancelled. */
export async function askText(title, label, value = "", { type = "text", hint = null, button = "Save" } = {}) {
  const input = el("input", { type, value, autocomplete: "off", spellcheck: "false", required: true });
  const field = el("label", { class: "field" }, el("span", {}, label), input);
  const asked = openDialog(title, [hint && el("p", {}, hint), field].filter(Boolean), [["yes", button], ["", "Cancel"]]);
  input.focus();
  input.select();
  const answer = await asked;
  return answer === "yes" && input.value.trim() ? input.value.trim() : null;
}

const notices = document.getElementById("notices");

/** A message above the box, until it is closed. @param {[string, () => void]} [button] */
export function notice(text, button = null) {
  const same = [...notices.children].find((each) => each.dataset.text === text);
  same?.remove();
  const shown = el(
    "div",
    { class: "notice", role: "alert", "data-text": text },
    el("p", {}, text),
    button && el("button", { type: "button", class: "small", onclick: () => (shown.remove(), button[1]()) }, button[0]),
    iconButton("close", "Dismiss", () => shown.remove()),
  );
  notices.append(shown);
  while (notices.children.length > 3) notices.firstChild.remove();
  return shown;
}
