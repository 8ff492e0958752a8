// The server's time of day, and what has to be said anew as it passes.

let offset = 0;
let paused = false;

/** The server has told its time, in seconds since 1970. */
export function set(now) {
  offset = now - Date.now() / 1000;
}

/** The server's time of day now, in seconds since 1970. */
export function now() {
  return Date.now() / 1000 + offset;
}

/** Time stands still on a page that does not hear of the server any more. */
export function pause(is) {
  paused = is;
}

/** Whether it does. */
export function isPaused() {
  return paused;
}

/** Have `element` say what `tick` says, now and with each second. */
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
