// Durations and times of day, as people read them.

import { now, ticking } from "./clock.js";
import { h, say } from "./dom.js";

/** A duration in its two largest units; the command line has the same words. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 100) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A duration that may be much less than a second. */
export function fine(seconds) {
  if (seconds < 0.0095) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 10 ? `${Number(seconds.toFixed(1))} s` : span(seconds);
}

/** A time of day, to the second. */
export function clockTime(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hourCycle: "h23" });
}

/** Date and time, with as much of the date as is needed. */
export function exact(at) {
  const when = new Date(at * 1000);
  if (when.toDateString() === new Date().toDateString()) return clockTime(at);
  const day = when.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${clockTime(at)}`;
}

/** How long something has been so; on hover and focus since when, to the second. `at` may be changed later. */
export function when(at, words = (seconds) => span(seconds), attributes = {}, before = "since ") {
  const relative = h("span.relative");
  const absolute = h("span.exact");
  const element = h("time.when", attributes, relative, absolute);
  element.at = at;
  return ticking(element, () => {
    say(relative, words(now() - element.at));
    say(absolute, before + exact(element.at));
  });
}
