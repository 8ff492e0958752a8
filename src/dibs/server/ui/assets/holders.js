// Holders and waiters: their names, their state, and the time that is left, as all views show them.

import { toLock } from "./address.js";
import { h, setAttribute, setText } from "./dom.js";
import { nameNode } from "./names.js";
import { exact, isPaused, now, since, span, ticking } from "./time.js";

const STATES = {
  unclaimed: "granted, not yet claimed",
  revoked: "revoked",
  retained: "retained",
};

/** The owner and its note. */
export function person(one, most = 40) {
  const note = one.note ? h("span.note", {}, "(", nameNode(one.note, most), ")") : null;
  return h("span.person", {}, h("span.owner", {}, nameNode(one.owner || "nobody", most)), note);
}

/** A badge for the state of a hold; null for one that is just held. */
export function stateBadge(hold) {
  const word = STATES[hold.state];
  return word ? h("span.badge", { "data-state": hold.state }, word) : null;
}

/** What a hold has: slots, a side of a readers-writer lock, units. */
export function share(status, hold) {
  if (status.kind === "rwlock") return hold.units === null ? "writing" : "reading";
  if (status.capacity === null || status.capacity <= 1) return "";
  if (hold.slots.length) return slots(hold.slots);
  return hold.units > 1 ? `${hold.units} units` : "";
}

/** Format slots: "slots 1–3, 7". */
function slots(numbers) {
  const ranges = [];
  for (const each of [...numbers].sort((a, b) => a - b)) {
    const last = ranges.at(-1);
    if (last && last[1] === each - 1) last[1] = each;
    else ranges.push([each, each]);
  }
  const text = ranges.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  return `slot${numbers.length > 1 ? "s" : ""} ${text}`;
}

/** Format a number of things. */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Describe an event in a few words. */
export function happened(event) {
  const parts = [];
  if (event.slots.length && !(event.slots.length === 1 && event.kind !== "semaphore")) parts.push(slots(event.slots));
  if (event.waited) parts.push(`after ${span(event.waited)} in the queue`);
  if (event.held_for != null && event.what !== "renewed") parts.push(`held for ${span(event.held_for)}`);
  return parts.join(", ");
}

/** The head of a card: a name that leads to its lock's page, and a word on it. */
export function cardTitle(item, word, kind = null) {
  return h("h2", {}, kind, h("a", { href: toLock(item.kind, item.encodedName) }, nameNode(item.name, 60)), word);
}

/** A named fact. */
export function fact(name, ...value) {
  return h("span.fact", {}, h("span.fact-name", {}, name), " ", ...value);
}

/** Show those who wait, in their order. */
export function waiterLine(waiter) {
  const units = waiter.units > 1 ? h("span.soft", {}, `${waiter.units} units`) : null;
  const priority = waiter.priority ? h("span.soft", {}, `priority ${waiter.priority}`) : null;
  return h("li", {}, person(waiter), units, priority, since(waiter.since, { tabindex: "0" }));
}

/** A line for a hold, with a bar that `updateHold` sets. `more` is shown below. */
export function holdLine(status, hold, most, ...more) {
  const bar = leaseBar();
  const who = h("span.holding", {}, person(hold, most), h("span.soft", {}, share(status, hold)), stateBadge(hold));
  const line = h("li.hold", {}, who, bar, ...more);
  line.bar = bar;
  return line;
}

/** Bring its bar up to date. */
export function updateHold(line, hold) {
  setBar(line.bar, hold);
}

const SLACK = 300; // milliseconds by which a bar may be wrong

const DRAIN = [
  { transform: "scaleX(1)", backgroundColor: "var(--ok)" },
  { transform: "scaleX(0.45)", backgroundColor: "var(--ok)", offset: 0.55 },
  { transform: "scaleX(0.2)", backgroundColor: "var(--warn)", offset: 0.8 },
  { transform: "scaleX(0)", backgroundColor: "var(--bad)" },
];

/** A bar that drains until its lease ends, and the time that is left. */
export function leaseBar() {
  const fill = h("span.fill");
  const [relative, absolute] = [h("span.relative"), h("span.exact")];
  const left = h("span.left.when", {}, relative, absolute);
  const element = h("span.lease", {}, h("span.bar", { "aria-hidden": "true" }, fill), left);
  element.fill = fill;
  element.left = ticking(left, () => {
    setText(relative, timeLeft(element.hold));
    setText(absolute, element.hold ? exact(element.hold.ends) : "");
  });
  return element;
}

function timeLeft(hold) {
  if (!hold) return "";
  const left = hold.ends - now();
  return left > 0 ? span(left) : "ended";
}

/** Show a hold, or null for none. */
export function setBar(element, hold) {
  element.hold = hold;
  element.left.tick();
  setAttribute(element, "data-state", hold ? hold.state : "none");
  if (!hold) {
    element.draining?.cancel();
    element.draining = null;
    return;
  }
  const duration = Math.max(hold.whole, 0.001) * 1000;
  const gone = Math.min(Math.max(duration - (hold.ends - now()) * 1000, 0), duration);
  const { draining } = element;
  const isSame = draining && draining.playState !== "paused" && element.duration === duration;
  if (isSame && Math.abs(draining.currentTime - gone) < SLACK) return;
  draining?.cancel();
  element.duration = duration;
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.draining = element.fill.animate(DRAIN, { duration, fill: "both", easing: isStill ? "steps(12)" : "linear" });
  element.draining.currentTime = gone;
  if (isPaused()) element.draining.pause();
}

/** Stop all bars, when the page is not connected. */
export function stopBars() {
  for (const fill of document.querySelectorAll(".lease .fill")) {
    for (const animation of fill.getAnimations()) animation.pause();
  }
}
