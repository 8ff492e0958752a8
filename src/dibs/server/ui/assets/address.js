// The part of the URL after the #: a view and its filters. The fields that set the filters.

import { h } from "./dom.js";

const TYPING_PAUSE = 250; // milliseconds
let fields = 0;

/** Read the URL: `#/now?prefix=jobs/` is `{ path: ["now"], params }`. */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean), params: new URLSearchParams(query) };
}

/** Return the URL of a view. Empty parameters are left out. */
export function to(path, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value)).toString();
  return `#/${path.join("/")}${query ? `?${query}` : ""}`;
}

/** Return the URL of a lock's page. `encodedName` is its name in base64. */
export function toLock(kind, encodedName) {
  return to(["lock", kind, encodedName]);
}

/** Write filters into the URL, so that a bookmark and the back button keep them. */
function keep(changes) {
  const { path, params } = here();
  history.replaceState(null, "", to(path, { ...Object.fromEntries(params), ...changes }));
}

/** Return the ticket of a sign-in link, or null, and remove it from the URL and the history. */
export function takeTicket() {
  const found = /^#ticket=(.+)$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1]; // not a ticket: the service rejects it
  }
}

/** A field for the beginning of names. `changed` gets it when the user pauses. */
export function prefixField(value, changed) {
  let timer = null;
  const settle = () => {
    clearTimeout(timer);
    if (input.value === value) return;
    value = input.value;
    keep({ prefix: value });
    changed(value);
  };
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(settle, TYPING_PAUSE);
  };
  const input = h("input", {
    type: "search",
    value,
    placeholder: "any name",
    spellcheck: "false",
    autocapitalize: "none",
    autocomplete: "off",
    maxlength: "512",
    oninput: later,
    onchange: settle,
  });
  return field("Prefix", input);
}

/** A choice. `name` is its parameter in the URL; each of `options` is a value and its label. */
export function choiceField(label, name, options, value, changed) {
  const choose = () => {
    keep({ [name]: select.value });
    changed(select.value);
  };
  const each = ([word, text]) => h("option", { value: word, selected: word === value }, text);
  const select = h("select", { onchange: choose }, ...options.map(each));
  return field(label, select);
}

function field(label, input) {
  input.id = `field-${(fields += 1)}`;
  return h("span.field", {}, h("label", { for: input.id }, label), input);
}

export const KINDS = [
  ["", "all kinds"],
  ["lock", "locks"],
  ["semaphore", "semaphores"],
  ["rwlock", "readers-writer locks"],
  ["tasklock", "task locks"],
  ["leader", "leaders"],
];
