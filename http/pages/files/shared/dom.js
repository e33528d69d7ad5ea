// Elements made from values. No string ever becomes markup: text goes into text nodes.

/**
 * @param {string} tag
 * @param {Object<string, any>} props attributes; `class`; `on…` with a function listens; null, undefined and false are
 *   left out, true is an empty attribute.
 * @param {...(Node|string|null|undefined|false|Array)} children
 */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const PATHS = {
  attach: "M20 11.5 12 19.5a5 5 0 0 1-7-7l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8L9.8 17.2a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
  back: "m14 6-6 6 6 6",
  branch: "M7 4v10a3 3 0 0 0 3 3h7m-3-3 3 3-3 3M7 4v0",
  check: "m5 12.5 4.5 4.5L19 7.5",
  chevron: "m9 6 6 6-6 6",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM5 15V4h10",
  down: "M12 5v14m-6-6 6 6 6-6",
  download: "M12 4v11m-5-5 5 5 5-5M5 20h14",
  edit: "M4 20l1-4.5L15.5 5l3.5 3.5L8.5 19z",
  forward: "m10 6 6 6-6 6",
  help: "M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.4-1 .9-1 1.7M12 17v.01",
  menu: "M4 7h16M4 12h16M4 17h16",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  play: "M8 5.5v13l10-6.5z",
  plus: "M12 5v14M5 12h14",
  retry: "M19 12a7 7 0 1 1-2-4.9M19 4v4h-4",
  send: "M12 19V5m-6 6 6-6 6 6",
  settings: "M4 7h9m5 0h2M4 17h2m5 0h9M15.5 4.8v4.4M8.5 14.8v4.4",
  stop: "M7.5 7.5h9v9h-9z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v1.5m0 15V21M3 12h1.5m15 0H21M5.6 5.6l1 1m10.8 10.8 1 1m0-12.8-1 1M6.6 17.4l-1 1",
  timeline: "M4 6h7M8 12h9M13 18h7",
  tool: "M14.5 5.5a4 4 0 0 0-5 5L4 16v4h4l5.5-5.5a4 4 0 0 0 5-5L16 12l-4-4z",
  trash: "M5 7h14M10 7V4.5h4V7m-7 0 .8 13h8.4L17 7",
};

/** A line drawing that screen readers skip. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows only a drawing; `label` is its name and its tooltip. */
export function iconButton(name, label, onclick, props = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

/** Offers a text as a file. */
export function download(name, text, type = "application/json") {
  const address = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** `1,234` in the reader's way. */
export const count = (value) => Number(value).toLocaleString();

/** The link that skips to what matters moves the focus itself: with a <base>, its address may be another page's. */
export function wireSkipLink() {
  const link = document.querySelector(".skip");
  link.addEventListener("click", (event) => {
    event.preventDefault();
    document.querySelector(link.hash).focus();
  });
}
