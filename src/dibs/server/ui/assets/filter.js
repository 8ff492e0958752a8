// What is shown is narrowed down by what names begin with; the address remembers it.

import { h } from "./dom.js";
import { keep } from "./route.js";

const PAUSE = 250;
let count = 0;

/** A field for what names begin with, `changed` is called with it once its writer pauses. */
export function prefixField(value, changed) {
  const id = `prefix-${(count += 1)}`;
  let timer = null;
  const settle = () => {
    clearTimeout(timer);
    if (input.value === value) return;
    value = input.value;
    keep({ prefix: value });
    changed(value);
  };
  const input = h("input", {
    id,
    type: "search",
    value,
    placeholder: "any name",
    spellcheck: "false",
    autocapitalize: "none",
    autocomplete: "off",
    maxlength: "512",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(settle, PAUSE);
    },
    onchange: settle,
  });
  return h("span.field", {}, h("label", { for: id }, "Prefix"), input);
}

/** A choice of one of several; each of `options` is a value and its words. */
export function choiceField(label, name, options, value, changed) {
  const id = `choice-${(count += 1)}`;
  const select = h(
    "select",
    { id, onchange: () => (keep({ [name]: select.value }), changed(select.value)) },
    ...options.map(([each, words]) => h("option", { value: each, selected: each === value }, words)),
  );
  return h("span.field", {}, h("label", { for: id }, label), select);
}

export const KINDS = [
  ["", "all kinds"],
  ["lock", "locks"],
  ["semaphore", "semaphores"],
  ["rwlock", "readers-writer locks"],
  ["tasklock", "task locks"],
  ["leader", "leaders"],
];
