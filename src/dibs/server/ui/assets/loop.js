// What is looked at again and again: soon after something has happened, and now and then in any case.

import { Away, Problem } from "./api.js";
import { news } from "./live.js";

const SOON = 300;
const SHARE = 4;

/**
 * Run `look` now, every so many seconds and soon after news that `concerns` says are about it, never twice at a
 * time and never for more than a fifth of the time. `failed` is told what the service says instead of an answer.
 * Returns what ends it, and `poke`, for "at once".
 */
export function looking(look, { every = 5, concerns = () => false, failed = () => {} } = {}) {
  let timer = null;
  let due = 0;
  let busy = false;
  let over = false;
  let poked = false;
  let rest = SOON;

  async function run() {
    timer = null;
    if (document.hidden) return; // nobody looks
    busy = true;
    poked = false;
    const begun = performance.now();
    try {
      await look();
    } catch (error) {
      if (error instanceof Away) return; // which is said for the whole page
      if (!(error instanceof Problem)) throw error;
      if (!over) failed(error);
    } finally {
      busy = false;
      rest = Math.max(SOON, SHARE * (performance.now() - begun));
      if (!over) plan(poked ? rest : Math.max(every * 1000, rest));
    }
  }

  function plan(milliseconds) {
    clearTimeout(timer);
    due = performance.now() + milliseconds;
    timer = setTimeout(run, milliseconds);
  }

  function soon() {
    if (busy) poked = true;
    else if (due - performance.now() > rest) plan(rest);
  }

  const onNews = ({ detail }) => detail.some(concerns) && soon();
  const onReset = () => soon();
  const onSight = () => document.hidden || over || busy || plan(0);
  news.addEventListener("event", onNews);
  news.addEventListener("reset", onReset);
  news.addEventListener("state", onReset);
  document.addEventListener("visibilitychange", onSight);
  run();
  return {
    poke: () => (busy ? (poked = true) : plan(0)),
    stop() {
      over = true;
      clearTimeout(timer);
      news.removeEventListener("event", onNews);
      news.removeEventListener("reset", onReset);
      news.removeEventListener("state", onReset);
      document.removeEventListener("visibilitychange", onSight);
    },
  };
}
