// A lease's bar, which drains by itself until its lease ends.

import { isPaused, now, ticking } from "./clock.js";
import { h, mark, say } from "./dom.js";
import { exact, span } from "./times.js";

const SLACK = 0.3;

const DRAIN = [
  { transform: "scaleX(1)", backgroundColor: "var(--ok)" },
  { transform: "scaleX(0.45)", backgroundColor: "var(--ok)", offset: 0.55 },
  { transform: "scaleX(0.2)", backgroundColor: "var(--warn)", offset: 0.8 },
  { transform: "scaleX(0)", backgroundColor: "var(--bad)" },
];

/** A bar with the time that is left. */
export function leaseBar() {
  const fill = h("span.fill");
  const [relative, absolute] = [h("span.relative"), h("span.exact")];
  const left = h("span.left.when", {}, relative, absolute);
  const element = h("span.lease", {}, h("span.bar", { "aria-hidden": "true" }, fill), left);
  element.fill = fill;
  ticking(left, () => {
    const { hold } = element;
    say(relative, words(hold));
    say(absolute, hold ? exact(hold.ends) : words(hold));
  });
  element.left = left;
  return element;
}

/** Show what is left of a hold, as `statuses` has it; null for none. */
export function setBar(element, hold) {
  element.hold = hold;
  element.left.tick();
  mark(element, "data-state", hold ? hold.state : "none");
  if (!hold) {
    element.draining?.cancel();
    element.draining = null;
    return;
  }
  const whole = Math.max(hold.whole, 0.001);
  const gone = Math.min(Math.max(whole - (hold.ends - now()), 0), whole);
  if (!runs(element, whole, gone)) drain(element, whole, gone);
}

/** Whether what is drawn is right as it is. */
function runs({ draining, whole }, wanted, gone) {
  if (!draining || draining.playState === "paused" || whole !== wanted) return false;
  return Math.abs(draining.currentTime / 1000 - gone) < SLACK;
}

function drain(element, whole, gone) {
  element.draining?.cancel();
  element.whole = whole;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.draining = element.fill.animate(DRAIN, {
    duration: whole * 1000,
    fill: "both",
    easing: still ? "steps(12)" : "linear",
  });
  element.draining.currentTime = gone * 1000;
  if (isPaused()) element.draining.pause();
}

/** On a page that hears nothing any more no bar moves. */
export function stillAll(is) {
  if (!is) return;
  for (const fill of document.querySelectorAll(".lease .fill")) {
    for (const animation of fill.getAnimations()) animation.pause();
  }
}

function words(hold) {
  if (!hold) return "";
  const left = hold.ends - now();
  return left > 0 ? span(left) : "ended";
}
