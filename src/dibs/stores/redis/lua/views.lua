-- core/ledger.py: what people may see of a book's entries: ages and remaining times, never ids.

local function age(turn, since)
  return math.max(turn.stamp - since, 0) / 1e6
end

local Views = {}

-- The first holds of a list, as others may see them.
function Views.holders_of(turn, list, count)
  local shown = {}
  for i = 1, math.min(#list, count) do
    local hold = list[i]
    shown[i] = struct.pack('<ddddIc0Ic0Ic0Ic0Ic0Ic0Ic0',
      hold.token, hold.units, age(turn, hold.since), math.max(hold.expires - turn.now, 0),
      #hold.lease, hold.lease, #hold.owner, hold.owner, #hold.slots, hold.slots,
      #hold.note, hold.note, #hold.state, hold.state, #hold.address, hold.address,
      #hold.trace, hold.trace)
  end
  return shown
end

-- A place, as others may see it.
function Views.waiter_of(turn, place)
  return struct.pack('<dddIc0Ic0Ic0Ic0Ic0',
    place.units, place.priority, age(turn, place.since),
    #place.lease, place.lease, #place.owner, place.owner, #place.note, place.note,
    #place.address, place.address, #place.trace, place.trace)
end
