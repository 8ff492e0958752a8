// Requests to the service with the session's cookie, and streams of events that reconnect.

/** The service answered with an error. `message` is its text. */
export class Problem extends Error {
  constructor(status, body = {}) {
    super(body.detail || body.title || `the service answered ${status}`);
    this.status = status;
  }
}

/** The service did not answer. */
export class Away extends Error {
  constructor() {
    super("the service does not answer");
  }
}

const TIMEOUT = 15_000;
const DOWN = [502, 503, 504];

/** Whether a retry can succeed: the service, or a store behind it, is away. */
export function isTemporary(error) {
  return error instanceof Away || DOWN.includes(error.status);
}

let csrf = "";
const listeners = { away: () => {}, back: () => {}, signedOut: () => {} };

/** Set what to call when the service is away, is back, or rejects the session. */
export function listen(given) {
  Object.assign(listeners, given);
}

/** Set the session's token. Every request that changes something sends it. */
export function setToken(token) {
  csrf = token;
}

/** Send a request and return the JSON of the answer. Raises `Problem` or `Away`. `quiet`: ignore a 401. */
export async function request(method, path, { query, body, quiet = false } = {}) {
  const answer = await send(method, path + (query ? `?${new URLSearchParams(query)}` : ""), body);
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const problem = await problemOf(answer);
  if (answer.status === 401 && !quiet) listeners.signedOut();
  throw problem;
}

/** Read something. */
export const get = (path, query, options = {}) => request("GET", path, { query, ...options });

async function send(method, url, body) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (csrf && method !== "GET") headers["dibs-csrf"] = csrf;
  const options = { method, headers, body: JSON.stringify(body), cache: "no-store" };
  try {
    const answer = await fetch(url, { ...options, signal: AbortSignal.timeout(TIMEOUT) });
    if (DOWN.includes(answer.status)) listeners.away();
    else listeners.back();
    return answer;
  } catch {
    listeners.away();
    throw new Away();
  }
}

async function problemOf(answer) {
  return new Problem(answer.status, await answer.json().catch(() => ({})));
}

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 5_000;
const HIDDEN = 30_000; // milliseconds until a hidden page closes its stream: browsers have few connections
const FINAL = [400, 401, 403, 404];

/**
 * Follow a stream of server-sent events until `stop()` of the result is called. After an interruption it
 * continues after the last event. `onEvent` gets the type and the data of each event. `onState` gets `live`,
 * `lost` (it reconnects) or `refused` (it does not), with the `Problem` of the answer, if there was one.
 */
export function follow(path, { onEvent, onState }) {
  const stopped = new AbortController();
  run({ path, onEvent, onState, lastId: "", beat: 15, isLive: false, signal: stopped.signal });
  return { stop: () => stopped.abort() };
}

async function run(stream) {
  let pause = FIRST_PAUSE;
  while (!stream.signal.aborted) {
    stream.isLive = false;
    const problem = await connectOnce(stream).catch((error) => (error instanceof Problem ? error : null));
    if (stream.signal.aborted) return;
    const isRefused = FINAL.includes(problem?.status);
    stream.onState(isRefused ? "refused" : "lost", problem);
    if (isRefused) return;
    if (document.hidden) await whenVisible(stream.signal);
    pause = stream.isLive ? FIRST_PAUSE : Math.min(2 * pause, LONGEST_PAUSE);
    await sleep(pause * (0.75 + Math.random() / 2), stream.signal);
  }
}

/** Read one connection to its end. It also ends after two beats of silence. */
async function connectOnce(stream) {
  const connection = new AbortController();
  const end = () => connection.abort();
  const signal = AbortSignal.any([stream.signal, connection.signal]);
  let hidden = null;
  const onVisibility = () => {
    clearTimeout(hidden);
    if (document.hidden) hidden = setTimeout(end, HIDDEN);
  };
  document.addEventListener("visibilitychange", onVisibility, { signal });
  let silence = setTimeout(end, TIMEOUT);
  try {
    const headers = { accept: "text/event-stream" };
    if (stream.lastId) headers["last-event-id"] = stream.lastId;
    const answer = await fetch(stream.path, { headers, cache: "no-store", signal });
    if (!answer.ok) throw await problemOf(answer);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const parse = parser(stream);
    for (;;) {
      clearTimeout(silence);
      silence = setTimeout(end, (2 * stream.beat + 1) * 1000);
      const { value, done } = await reader.read();
      if (done) return null;
      parse(value);
    }
  } finally {
    clearTimeout(silence);
    clearTimeout(hidden);
    end();
  }
}

/** Parse pieces of a stream. An event that was cut short is dropped: the next connection sends it again. */
function parser(stream) {
  let rest = "";
  const fresh = () => ({ type: "message", data: [], id: "" });
  let event = fresh();
  return (piece) => {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        const { type, data, id } = event;
        event = fresh();
        if (id) stream.lastId = id;
        if (data.length) deliver(stream, type, data.join("\n"));
      } else if (line.startsWith("data: ")) event.data.push(line.slice(6));
      else if (line.startsWith("event: ")) event.type = line.slice(7);
      else if (line.startsWith("id: ")) event.id = line.slice(4);
    }
  };
}

function deliver(stream, type, text) {
  if (stream.signal.aborted) return; // the previous event may have stopped it
  const data = type === "bye" ? text : JSON.parse(text);
  if (type === "hello" && data.beat) stream.beat = data.beat;
  if (!stream.isLive) {
    stream.isLive = true;
    stream.onState("live");
  }
  stream.onEvent(type, data);
}

function whenVisible(signal) {
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

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
