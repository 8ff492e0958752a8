// The stream of events, the state of the connection, and views that look at the service again and again.

import { Away, follow, Problem } from "./api.js";
import { now, pauseClock, setClock } from "./time.js";

const MOST = 5_000; // events that a page keeps
const PATH = `v1/events?recent=${MOST}`;

/** Fires `event` (`detail` is the list of new events), `reset` and `state`. */
export const news = new EventTarget();

let events = [];
let state = "connecting";
let since = 0;
let why = "";
let stream = null;
let isStreaming = false;
let isAnswered = true;
let gathered = [];
let timer = null;

/** Return the latest events, oldest first. */
export function latest() {
  return events;
}

/** Return `connecting`, `live` or `reconnecting`, since when by the server's clock, and the service's reason. */
export function connection() {
  return { state, since, why };
}

/** Start the stream. `refused` is called if the service rejects it. */
export function start(refused) {
  stop();
  stream = follow(PATH, {
    onEvent: take,
    onState: (word, problem) => {
      isStreaming = word === "live";
      why = problem?.message ?? "";
      if (word === "refused") refused(problem);
      judge();
    },
  });
}

/** Stop the stream, and forget its events: the key of the next session may see less. */
export function stop() {
  stream?.stop();
  stream = null;
  forget();
  isStreaming = false;
  isAnswered = true;
  change("connecting");
}

/** Report whether a request was answered. */
export function reachable(is) {
  isAnswered = is;
  judge();
}

function judge() {
  if (isStreaming && isAnswered) change("live");
  else if (state !== "connecting") change("reconnecting");
}

function change(to) {
  if (state === to) return;
  state = to;
  since = now();
  pauseClock(state === "reconnecting");
  document.documentElement.dataset.connection = state;
  news.dispatchEvent(new Event("state"));
}

function take(type, data) {
  if (type === "hello") setClock(data.now);
  else if (type === "reset") {
    forget();
    news.dispatchEvent(new Event("reset"));
  } else if (type === "message") {
    if (!gathered.length) timer = setTimeout(deliver, 50);
    gathered.push(data);
  }
}

/** Deliver together what came within 50 ms. */
function deliver() {
  const some = gathered;
  gathered = [];
  events = events.concat(some).slice(-MOST);
  news.dispatchEvent(new CustomEvent("event", { detail: some }));
}

function forget() {
  clearTimeout(timer);
  events = [];
  gathered = [];
}

const SOON = 300;
const SHARE = 4; // pauses are so many times as long as a look

/**
 * Run `look` now, every so many seconds, and soon after events that `concerns` accepts. It never runs twice at
 * a time, nor for more than a fifth of the time, nor while the page is hidden. `failed` gets an error that the
 * service answered. The result has `stop`, and `again` to look at once.
 */
export function looking(look, { every = 5, concerns = () => false, failed = () => {} } = {}) {
  const stopped = new AbortController();
  const { signal } = stopped;
  let timer = null;
  let due = 0;
  let isBusy = false;
  let isWanted = false;
  let pause = SOON;

  async function run() {
    timer = null;
    if (document.hidden) return;
    isBusy = true;
    isWanted = false;
    const begun = performance.now();
    try {
      await look();
    } catch (error) {
      if (error instanceof Away) return; // the banner reports it
      if (!(error instanceof Problem)) throw error;
      if (!signal.aborted) failed(error);
    } finally {
      isBusy = false;
      pause = Math.max(SOON, SHARE * (performance.now() - begun));
      if (!signal.aborted) plan(isWanted ? pause : Math.max(every * 1000, pause));
    }
  }

  function plan(milliseconds) {
    clearTimeout(timer);
    due = performance.now() + milliseconds;
    timer = setTimeout(run, milliseconds);
  }

  function soon() {
    if (isBusy) isWanted = true;
    else if (due - performance.now() > pause) plan(pause);
  }

  function again() {
    if (isBusy) isWanted = true;
    else plan(0);
  }

  news.addEventListener("event", ({ detail }) => detail.some(concerns) && soon(), { signal });
  news.addEventListener("reset", soon, { signal });
  news.addEventListener("state", soon, { signal });
  document.addEventListener("visibilitychange", () => document.hidden || isBusy || plan(0), { signal });
  run();
  const stop = () => {
    stopped.abort();
    clearTimeout(timer);
  };
  return { again, stop };
}
