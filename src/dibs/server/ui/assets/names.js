// Names of any bytes, and texts that others have written, so that nothing in them hides or turns around.

const UNSEEN = /[\p{C}\p{Z}]/u;
const SHORT = { 9: "\\t", 10: "\\n", 13: "\\r" };
const ENCODER = new TextEncoder();
const STRICT = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes of URL-safe base64 without padding. */
export function decoded(text) {
  const raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

/** URL-safe base64 without padding, of bytes or a text. */
export function encoded(what) {
  const bytes = typeof what === "string" ? ENCODER.encode(what) : what;
  const raw = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(raw).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** A key's kind and the bytes of its name. */
export function split(key) {
  const bytes = decoded(key);
  const colon = bytes.indexOf(58);
  return { kind: STRICT.decode(bytes.subarray(0, colon)), name: bytes.subarray(colon + 1) };
}

/** What a name or a text consists of: letters to show, and escapes of what can't be shown. */
function units(what) {
  if (typeof what === "string") return Array.from(what, unit);
  try {
    return Array.from(STRICT.decode(what), unit);
  } catch {
    return unitsOfBytes(what);
  }
}

function unit(letter) {
  if (letter === " " || !UNSEEN.test(letter)) return { text: letter, escaped: false };
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

/** A name as a plain text, escapes and all; it is what has to be typed to force its release. */
export function shown(what) {
  return units(what).map((each) => each.text).join("");
}

/**
 * An element that shows it, in its own text direction. A longer name loses its head, as names differ at the
 * end; a longer text is cut in the middle.
 */
export function nameNode(what, most = Infinity) {
  const element = document.createElement("bdi");
  element.className = "name";
  const all = units(what);
  if (all.length <= most) {
    append(element, all);
  } else {
    const tail = typeof what === "string" ? Math.floor(most / 3) : most - 1;
    append(element, all.slice(0, most - tail - 1));
    const gap = document.createElement("span");
    gap.className = "gap";
    gap.textContent = "…";
    element.append(gap);
    append(element, all.slice(all.length - tail));
    element.title = shown(what);
  }
  return element;
}

function append(element, some) {
  let text = "";
  for (const each of some) {
    if (!each.escaped) {
      text += each.text;
      continue;
    }
    if (text) element.append(text);
    text = "";
    const escape = document.createElement("span");
    escape.className = "escape";
    escape.textContent = each.text;
    element.append(escape);
  }
  if (text) element.append(text);
}
