// The tokens of an answer, shaded by their probability; alternatives on hover, or by the arrow keys.

import { count, el } from "../shared/dom.js";

const percent = (logprob) => {
  const value = Math.exp(logprob) * 100;
  return value >= 99.95 ? "100 %" : value >= 10 ? `${value.toFixed(0)} %` : value >= 0.1 ? `${value.toFixed(1)} %` : "< 0.1 %";
};
const visible = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·") || "∅";

const MOST = 5_000; // tokens that are drawn

/** @param {[string, number, [string, number][]][]} all */
export function drawTokens(all) {
  const tokens = all.slice(0, MOST);
  const panel = el("div", { class: "alternatives", role: "status" });
  const list = el("div", { class: "token-list", tabindex: "0", role: "group", "aria-label": "Tokens; the arrow keys go from one to the next" });
  const spans = tokens.map(([text, logprob], place) => {
    const shade = Math.min(5, Math.floor((1 - Math.exp(logprob)) * 6));
    return el("span", { class: `token shade-${shade}`, "data-place": String(place), dir: "ltr" }, text);
  });
  list.append(...spans);
  let current = -1;

  function show(place) {
    spans[current]?.classList.remove("current");
    current = place;
    spans[place].classList.add("current");
    const [text, logprob, top] = tokens[place];
    const rows = top.some(([each]) => each === text) ? top : [[text, logprob], ...top];
    panel.replaceChildren(
      el("p", {}, `Token ${place + 1} of ${tokens.length}`),
      el("ol", {}, ...rows.map(([each, value]) => el("li", { class: each === text ? "chosen" : null }, el("code", { dir: "ltr" }, visible(each)), el("meter", { min: "0", max: "1", value: Math.exp(value).toFixed(4), "aria-label": `probability of ${visible(each)}` }), el("span", {}, percent(value))))),
    );
  }

  list.addEventListener("mouseover", (event) => event.target.dataset.place && show(Number(event.target.dataset.place)));
  list.addEventListener("focus", () => current < 0 && show(0));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(tokens.length - 1, current + step)));
    spans[current].scrollIntoView({ block: "nearest" });
  });
  const note = all.length > MOST ? el("p", { class: "as-written" }, `The first ${count(MOST)} of ${count(all.length)} tokens`) : null;
  return el("div", { class: "token-view" }, note, list, panel);
}
