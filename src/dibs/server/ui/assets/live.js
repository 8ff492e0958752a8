// What happens to locks, as it happens; and whether we hear of it.

import * as clock from "./clock.js";
import { follow } from "./stream.js";

const MOST = 5_000;
const RECENT = 2_000;
const PATH = `v1/events?recent=${RECENT}`;

/** Fires `event` (with the latest as its `detail`), `reset` and `state`. */
export const news = new EventTarget();

let events = [];
let state = "connecting";
let since = 0;
let why = "";
let stream = null;
let heard = false;
let answered = true;
let gathered = [];
let telling = null;

/** The latest events, oldest first. */
export function latest() {
  return events;
}

/** `connecting`, `live` or `reconnecting`, since when, by the server's clock, and what the service says of it. */
export function connection() {
  return { state, since, why };
}

/** Begin to listen; `refused` is called if the service will not have it. */
export function start(refused) {
  stop();
  stream = follow(PATH, {
    told: (kind, data) => take(kind, data),
    state: (word, problem) => {
      heard = word === "live";
      why = problem?.message ?? "";
      if (word === "refused") refused(problem);
      judge();
    },
  });
}

/** Listen no more. */
export function stop() {
  stream?.stop();
  stream = null;
  forget(); // the next session may be that of a key that sees less
  heard = false;
  answered = true;
  change("connecting");
}

/** A question was answered, or was not. */
export function reachable(is) {
  answered = is;
  judge();
}

function judge() {
  if (heard && answered) change("live");
  else if (state !== "connecting") change("reconnecting");
}

function change(to) {
  if (state === to) return;
  state = to;
  since = clock.now();
  clock.pause(state === "reconnecting");
  document.documentElement.dataset.connection = state;
  news.dispatchEvent(new Event("state"));
}

function take(kind, data) {
  if (kind === "hello") clock.set(data.now);
  else if (kind === "reset") {
    forget();
    news.dispatchEvent(new Event("reset"));
  } else if (kind === "message") {
    if (!gathered.length) telling = setTimeout(tell, 50);
    gathered.push(data);
  }
}

/** Many events come at once, and are told at once. */
function tell() {
  const some = gathered;
  gathered = [];
  events = events.concat(some).slice(-MOST);
  news.dispatchEvent(new CustomEvent("event", { detail: some }));
}

/** Nothing was heard; also what waits to be told is gone. */
function forget() {
  clearTimeout(telling);
  events = [];
  gathered = [];
}
