// What is said where there is nothing to see, with what to do next; and what went wrong.

import { h, say } from "./dom.js";

/** Nothing here yet. `command` is what to type to change that. */
export function empty(title, text, command) {
  const parts = [h("h2", {}, title), h("p", {}, text)];
  if (command) parts.push(h("pre", {}, h("code", {}, command)));
  return h("div.empty", {}, ...parts);
}

/** A line for what the service says instead of an answer; hidden as long as it answers. */
export function trouble() {
  const element = h("p.trouble", { role: "alert", hidden: true });
  return {
    element,
    tell(error) {
      say(element, error.message);
      element.hidden = false;
    },
    clear() {
      element.hidden = true;
    },
  };
}

/** The command for a first lock, at this service. */
export function firstLock() {
  const here = location.origin + location.pathname.replace(/\/$/, "");
  return `export DIBS_URL=${here} DIBS_API_KEY=…\ndibs run jobs/first -- sleep 60`;
}
