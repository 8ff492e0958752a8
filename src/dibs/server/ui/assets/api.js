// Questions to the service, with the session's cookie.

/** What the service says went wrong, in its words. */
export class Problem extends Error {
  constructor(status, said = {}) {
    super(said.detail || said.title || `the service answered ${status}`);
    this.status = status;
    this.kind = (said.type || "").split("/").pop();
    this.retryAfter = said.retry_after;
  }
}

/** The service can't be reached. */
export class Away extends Error {
  constructor() {
    super("the service does not answer");
  }
}

const PATIENCE = 15_000;
const DOWN = [502, 503, 504];

/** Whether it may well work in a while, since the service, or what it stands on, is away. */
export function passes(error) {
  return error instanceof Away || DOWN.includes(error.status);
}

let csrf = "";
const listeners = { away: () => {}, back: () => {}, signedOut: () => {} };

/** What is done when the service is away, is back, or does not know this session any more. */
export function listen(given) {
  Object.assign(listeners, given);
}

/** The session's token, which goes with whatever changes something. */
export function setToken(token) {
  csrf = token;
}

/** Ask, and give what is answered; raises `Problem` or `Away`. `quiet`: a 401 is no news. */
export async function ask(method, path, { query, body, quiet = false, signal } = {}) {
  const answer = await send(method, path, { query, body, signal });
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401 && !quiet) listeners.signedOut(problem);
  throw problem;
}

async function send(method, path, { query, body, signal }) {
  const told = query ? `?${new URLSearchParams(query)}` : "";
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (csrf && method !== "GET") headers["dibs-csrf"] = csrf;
  const limit = AbortSignal.timeout(PATIENCE);
  try {
    const answer = await fetch(path + told, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    if (DOWN.includes(answer.status)) listeners.away();
    else listeners.back();
    return answer;
  } catch (error) {
    if (signal?.aborted) throw error;
    listeners.away();
    throw new Away();
  }
}

/** Read something. */
export const get = (path, query, options = {}) => ask("GET", path, { query, ...options });
