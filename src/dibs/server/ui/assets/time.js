// The server's clock, and durations and times of day as people read them.

import { h, setText } from "./dom.js";

let offset = 0;
let paused = false;

/** Set the server's time, in seconds since 1970. */
export function setClock(now) {
  offset = now - Date.now() / 1000;
}

/** Return the server's time, in seconds since 1970. */
export function now() {
  return Date.now() / 1000 + offset;
}

/** Stop or resume everything that moves, for as long as the page is not connected. */
export function pauseClock(is) {
  paused = is;
}

/** Whether it is stopped. */
export function isPaused() {
  return paused;
}

/** Call `tick` now, and once a second while the element is in the document. */
export function ticking(element, tick) {
  element.classList.add("ticks");
  element.tick = tick;
  tick(element);
  return element;
}

setInterval(() => {
  if (paused || document.hidden) return;
  for (const element of document.querySelectorAll(".ticks")) element.tick(element);
}, 1000);

/** Format a duration in its two largest units, as the CLI does. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 100) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Format a time of day, to the second. */
export function clockTime(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hourCycle: "h23" });
}

/** Format date and time. Today's date is left out. */
export function exact(at) {
  const when = new Date(at * 1000);
  if (when.toDateString() === new Date().toDateString()) return clockTime(at);
  const day = when.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${clockTime(at)}`;
}

/** An element with the time since `element.at`. On hover and focus it shows that time itself, after `before`. */
export function since(at, attributes = {}, { words = span, before = "since " } = {}) {
  const relative = h("span.relative");
  const absolute = h("span.exact");
  const element = h("time.when", attributes, relative, absolute);
  element.at = at;
  return ticking(element, () => {
    setText(relative, words(now() - element.at));
    setText(absolute, before + exact(element.at));
  });
}
