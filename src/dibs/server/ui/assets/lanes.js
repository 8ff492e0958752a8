// Who held what when: a lane for each lock, or each slot of one, with blocks in it.

const ENDS = new Set(["released", "expired", "freed"]);

/**
 * Lanes of what is held now and of what has happened, the latest first. A block is
 * `{ start, end, token, owner, how }`; `end` is null as long as it is held, `how` is what ended it.
 */
export function lanes(statuses, events) {
  const found = new Map();
  for (const event of events) take(found, event);
  for (const status of statuses) for (const hold of status.holders) if (hold.lease) add(found, status, hold);
  const all = [...found.values()].filter((lane) => lane.blocks.size);
  for (const lane of all) lane.latest = Math.max(...[...lane.blocks.values()].map((block) => block.end ?? Infinity));
  return all.sort((a, b) => b.latest - a.latest || (a.id < b.id ? -1 : 1));
}

function take(found, event) {
  if (event.what === "granted") {
    for (const slot of slotsOf(event)) lane(found, event, slot).blocks.set(blockId(event), blockOf(event, event.at));
  } else if (ENDS.has(event.what)) {
    for (const slot of slotsOf(event)) close(lane(found, event, slot), event);
  }
}

/** What ended may have begun before anybody watched. */
function close(lane, event) {
  const id = blockId(event);
  const block = lane.blocks.get(id) ?? blockOf(event, event.at - (event.held_for ?? 0));
  Object.assign(block, { end: event.at, how: event.what });
  lane.blocks.set(id, block);
}

function add(found, status, hold) {
  const about = { kind: status.kind, name: status.spelt, slots: hold.slots, lease: hold.lease };
  for (const slot of slotsOf(about)) {
    const blocks = lane(found, about, slot).blocks;
    const id = blockId({ ...about, token: hold.token });
    if (!blocks.has(id)) blocks.set(id, { start: hold.since, end: null, token: hold.token, owner: hold.owner, how: "" });
  }
}

/** Events of more units have no slot numbers: `MAX_SLOTS` in key_state.py. */
function slotsOf(event) {
  return event.kind === "semaphore" && event.slots.length && event.slots.length <= 16 ? event.slots : [null];
}

function lane(found, { kind, name }, slot) {
  const id = `${kind}:${name}:${slot === null ? "" : String(slot).padStart(9, "0")}`;
  if (!found.has(id)) found.set(id, { id, kind, name, slot, blocks: new Map() });
  return found.get(id);
}

function blockId({ lease, token }) {
  return `${lease} ${token}`;
}

function blockOf({ token, owner }, start) {
  return { start, end: null, token, owner, how: "" };
}
