// Swagger UI on the description of this server, which it asks and nobody else.

const root = document.getElementById("swagger-ui");

/** What screen readers and keys miss in Swagger UI. */
function mend() {
  for (const each of root.querySelectorAll(".information-container")) each.setAttribute("role", "banner");
  for (const each of root.querySelectorAll(".opblock-tag")) each.setAttribute("aria-level", "2");
  for (const each of root.querySelectorAll("h4, h5")) each.setAttribute("aria-level", each.tagName === "H4" ? "3" : "4");
  for (const each of root.querySelectorAll("pre.microlight")) each.tabIndex = 0;
  for (const each of root.querySelectorAll("textarea:not([aria-label])")) each.setAttribute("aria-label", "Request body");
  for (const each of root.querySelectorAll("table[role=region]")) each.removeAttribute("role");
}

new MutationObserver(mend).observe(root, { childList: true, subtree: true });

SwaggerUIBundle({
  url: new URL("openapi.json", location.href).href,
  dom_id: "#swagger-ui",
  deepLinking: false, // its links would stand inside of buttons
  validatorUrl: null, // else it may tell another server what this one is
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
