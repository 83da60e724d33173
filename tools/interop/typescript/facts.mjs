// The content of all "everything" servers; see ../facts.py.

import { readFileSync } from "node:fs";

export const facts = JSON.parse(readFileSync(new URL("../facts.json", import.meta.url), "utf8"));

/** The prefix of a protocol version; see `TOUR` in ../facts.py. */
export const TOUR = "tour:";

/** The prefix of a command; see `HUB` in ../facts.py. */
export const HUB = "hub";

/**
 * Return whether a protocol version has a feature that not all have.
 * @param {string} protocolVersion
 * @param {string} feature
 */
export function has(protocolVersion, feature) {
  const [first, last] = facts.features[feature].map((name) => facts.protocol_versions.indexOf(name));
  const index = facts.protocol_versions.indexOf(protocolVersion);
  return first <= index && index <= last;
}

/** A request is answered with this error. */
export class Rejected extends Error {
  constructor(code, message, data) {
    super(message);
    Object.assign(this, { code, data });
  }
}
