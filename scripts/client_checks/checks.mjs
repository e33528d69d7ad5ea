// What the check_….mjs files share: the counterpart of checks.py.

import assert from "node:assert/strict";
import process from "node:process";

export const URL = process.env.PALLADIO_URL; // without /v1
export const KEY = process.env.PALLADIO_KEY;
export const MODEL = process.env.PALLADIO_MODEL;

// Runs functions by name, in order, a report of each on a line of its own; the exit code is 1 if one failed.
export async function runChecks(checks) {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`check ok: ${name}`);
    } catch (error) {
      console.error(error);
      const message = String(error?.message ?? error).replace(/\s+/g, " ");
      console.log(`check FAILED: ${name}: ${error?.name}: ${message.slice(0, 300)}`);
      process.exitCode = 1;
    }
  }
}

// A bounded JSON schema, since a random model does not end by itself.
export const VILLA = {
  type: "object",
  properties: {
    style: { type: "string", enum: ["palladian", "gothic"] },
    floors: { type: "integer", minimum: 1, maximum: 4 },
  },
  required: ["style", "floors"],
  additionalProperties: false,
};

export function isVilla(value) {
  assert.deepEqual(Object.keys(value).sort(), ["floors", "style"]);
  assert.ok(VILLA.properties.style.enum.includes(value.style));
  assert.ok([1, 2, 3, 4].includes(value.floors));
}
