// Where an answer's time went, out of the server's explanation of its request.

import { el } from "../shared/dom.js";

/** Fields of a request whose timeline is to be drawn. */
export const requestFields = {};

/**
 * @param {object} explanation of GET /v1/requests/{id}/explain
 * @returns {Node}
 */
export function drawTimeline(explanation) {
  return el("p", { class: "timeline-summary" }, explanation.summary);
}
