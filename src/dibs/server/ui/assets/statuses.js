// Who holds and waits, as the service tells it, with times of day instead of durations.

import { encoded, split } from "./names.js";

const MANY = 2 ** 20;

const wholes = new Map();

/** A key's status. `asked` is when it was asked for; `leases` is what the server has seen of them. */
export function status(told, asked, leases = {}) {
  const { kind, name } = split(told.key);
  return {
    key: told.key,
    kind,
    name,
    spelt: encoded(name),
    capacity: told.capacity >= MANY ? null : told.capacity,
    waiting: Math.max(told.waiting ?? 0, told.waiters?.length ?? 0),
    holding: Math.max(told.holding ?? 0, told.holders?.length ?? 0),
    used: told.used ?? 0,
    lastToken: told.last_token ?? 0,
    holders: (told.holders ?? []).map((each) => holder(each, asked, leases[each.lease])),
    waiters: (told.waiters ?? []).map((each) => waiter(each, asked)),
  };
}

function holder(told, asked, observed) {
  const ends = asked + told.expires_in;
  return {
    ...text(told),
    token: told.token,
    slots: told.slots ?? [],
    state: told.state ?? "held",
    since: asked - told.held_for,
    ends,
    whole: whole(told, observed),
    renewals: observed?.renewals ?? null,
  };
}

function waiter(told, asked) {
  return { ...text(told), priority: told.priority ?? 0, since: asked - told.waited };
}

function text(told) {
  const units = told.units ?? 1;
  return {
    lease: told.lease,
    owner: told.owner,
    note: told.note ?? "",
    units: units >= MANY ? null : units,
  };
}

/** How long the lease was granted for: as the server has seen it, or else the most that was left of it. */
function whole(told, observed) {
  if (observed?.ttl) return Math.max(observed.ttl, told.expires_in);
  const before = wholes.get(told.lease) ?? 0;
  const most = Math.max(before, told.expires_in);
  if (wholes.size > 20_000) wholes.clear();
  if (told.lease) wholes.set(told.lease, most);
  return most;
}

/** The hold that ends first. */
export function first(some) {
  return some.holders.reduce((soonest, each) => (soonest && soonest.ends <= each.ends ? soonest : each), null);
}
