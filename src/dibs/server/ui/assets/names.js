// Names of any bytes, and texts of other people: every character is shown, and none changes the text direction.

import { h } from "./dom.js";

const INVISIBLE = /[\p{C}\p{Z}]/u;
const SHORT = { 9: "\\t", 10: "\\n", 13: "\\r" };
const ENCODER = new TextEncoder();
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Decode URL-safe base64 without padding. */
export function decoded(text) {
  const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

/** Encode bytes or a text in URL-safe base64 without padding. */
export function encoded(what) {
  const bytes = typeof what === "string" ? ENCODER.encode(what) : what;
  const raw = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(raw).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Return a key's kind and the bytes of its name. */
export function split(key) {
  const bytes = decoded(key);
  const colon = bytes.indexOf(58);
  return { kind: STRICT.decode(bytes.subarray(0, colon)), name: bytes.subarray(colon + 1) };
}

/** Split a name or a text into characters, with escapes for those that cannot be shown. */
function units(what) {
  if (typeof what === "string") return Array.from(what, unit);
  try {
    return Array.from(STRICT.decode(what), unit);
  } catch {
    return unitsOfBytes(what);
  }
}

function unit(letter) {
  if (letter === " " || !INVISIBLE.test(letter)) return { text: letter, escaped: false };
  return { text: escapeOf(letter.codePointAt(0)), escaped: true };
}

function escapeOf(code) {
  if (code in SHORT) return SHORT[code];
  const digits = code.toString(16);
  if (code < 0x100) return "\\x" + digits.padStart(2, "0");
  return code < 0x10000 ? "\\u" + digits.padStart(4, "0") : "\\U" + digits.padStart(8, "0");
}

function unitsOfBytes(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length; ) {
    const lead = bytes[at];
    const length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    try {
      found.push(unit(STRICT.decode(bytes.subarray(at, at + length))));
      at += length;
    } catch {
      found.push({ text: escapeOf(lead), escaped: true });
      at += 1;
    }
  }
  return found;
}

/** Return a name as text with its escapes. A forced release asks for this text. */
export function shown(what) {
  return units(what).map((each) => each.text).join("");
}

/**
 * An element with a name or a text, in its own text direction. A name with more than `most` characters loses
 * its head, because names differ at the end. A text is cut in the middle.
 */
export function nameNode(what, most = Infinity) {
  const all = units(what);
  if (all.length <= most) return h("bdi.name", {}, ...nodes(all));
  const tail = typeof what === "string" ? Math.floor(most / 3) : most - 1;
  const head = nodes(all.slice(0, most - tail - 1));
  const rest = nodes(all.slice(all.length - tail));
  return h("bdi.name", { title: shown(what) }, ...head, h("span.soft", {}, "…"), ...rest);
}

function nodes(some) {
  const found = [];
  let text = "";
  for (const each of some) {
    if (!each.escaped) {
      text += each.text;
      continue;
    }
    found.push(text, h("span.escape", {}, each.text));
    text = "";
  }
  return [...found, text].filter((each) => each !== "");
}
