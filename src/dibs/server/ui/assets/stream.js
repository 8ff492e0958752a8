// A stream of events that mends itself: after an interruption it goes on where it was.

import { Problem } from "./api.js";

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 5_000;
const BEAT = 15;
const UNSEEN = 30_000;

/**
 * Follow `path` until `stop()` is called on what this returns. `told` gets the kind and the data of each event,
 * `state` is told of `live`, `lost` (it is tried again) and `refused` (it is not), with the `Problem` that was said.
 * A page that nobody looks at lets go of its connection, since browsers have few, and takes it up again.
 */
export function follow(path, { told, state }) {
  const stopped = new AbortController();
  const tail = { path, told, state, last: "", beat: BEAT, stood: false, signal: stopped.signal };
  run(tail);
  return { stop: () => stopped.abort() };
}

async function run(tail) {
  let pause = FIRST_PAUSE;
  while (!tail.signal.aborted) {
    tail.stood = false;
    let problem = null;
    try {
      await once(tail);
    } catch (error) {
      problem = error instanceof Problem ? error : null;
    }
    if (tail.signal.aborted) return;
    const isRefused = [400, 401, 403, 404].includes(problem?.status);
    tail.state(isRefused ? "refused" : "lost", problem);
    if (isRefused) return;
    if (document.hidden) await sight(tail.signal);
    pause = tail.stood ? FIRST_PAUSE : Math.min(2 * pause, LONGEST_PAUSE);
    await rest(pause * (0.75 + Math.random() / 2), tail.signal);
  }
}

/** One connection, to its end. */
async function once(tail) {
  const connection = new AbortController();
  const end = () => connection.abort();
  tail.signal.addEventListener("abort", end);
  let unseen = null;
  const onSight = () => {
    clearTimeout(unseen);
    if (document.hidden) unseen = setTimeout(end, UNSEEN);
  };
  document.addEventListener("visibilitychange", onSight);
  let watchdog = setTimeout(end, 15_000);
  try {
    const headers = { accept: "text/event-stream" };
    if (tail.last) headers["last-event-id"] = tail.last;
    const answer = await fetch(tail.path, { headers, cache: "no-store", signal: connection.signal });
    if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const parse = parser(tail);
    for (;;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(end, (2 * tail.beat + 1) * 1000);
      const { value, done } = await reader.read();
      if (done) return;
      parse(value);
    }
  } finally {
    clearTimeout(watchdog);
    clearTimeout(unseen);
    document.removeEventListener("visibilitychange", onSight);
    tail.signal.removeEventListener("abort", end);
    connection.abort();
  }
}

/** Takes pieces of text, and tells the events in them. One that was cut short is none: it is asked for again. */
function parser(tail) {
  let rest = "";
  let event = { kind: "message", data: [], id: "" };
  return (piece) => {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        const { kind, data, id } = event;
        event = { kind: "message", data: [], id: "" };
        if (id) tail.last = id;
        if (data.length) tell(tail, kind, data.join("\n"));
      } else if (line.startsWith("data: ")) event.data.push(line.slice(6));
      else if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("id: ")) event.id = line.slice(4);
    }
  };
}

function tell(tail, kind, text) {
  if (tail.signal.aborted) return; // the event before may have ended it
  const data = kind === "bye" ? text : JSON.parse(text);
  if (kind === "hello" && data.beat) tail.beat = data.beat;
  if (!tail.stood) {
    tail.stood = true;
    tail.state("live");
  }
  tail.told(kind, data);
}

/** Wait until somebody looks. */
function sight(signal) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      over.abort();
      resolve();
    };
    document.addEventListener("visibilitychange", look, { signal: over.signal });
    signal.addEventListener("abort", look, { signal: over.signal });
  });
}

function rest(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
