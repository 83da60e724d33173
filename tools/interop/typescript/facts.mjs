// What both sides know, see ../facts.py.

import { readFileSync } from "node:fs";

export const facts = JSON.parse(readFileSync(new URL("../facts.json", import.meta.url), "utf8"));

/** In front of a protocolVersion, see `TOUR` there. */
export const TOUR = "tour:";

/** In front of a command, see `HUB` there. */
export const HUB = "hub";

/**
 * Whether a protocolVersion has something that not all have.
 * @param {string} protocolVersion
 * @param {string} feature
 */
export function has(protocolVersion, feature) {
  const [first, last] = facts.features[feature].map((name) => facts.protocol_versions.indexOf(name));
  const place = facts.protocol_versions.indexOf(protocolVersion);
  return first <= place && place <= last;
}

/** A request is answered with an error. */
export class Refused extends Error {
  constructor(code, message, data) {
    super(message);
    Object.assign(this, { code, data });
  }
}
