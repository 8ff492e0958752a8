-- Which slots of a book are taken: a bit for each, the lowest first, in a string that lies in the row, so that
-- whoever wants a free one need not read every hold.

local function bit_of(slot)
  return math.floor(slot / 8) + 1, bit.lshift(1, slot % 8)
end

local function marked(byte, mask, is_taken)
  return is_taken and bit.bor(byte, mask) or bit.band(byte, bit.bnot(mask))
end

-- What is to be marked in each byte, and the last of these.
local function masks_of(slots)
  local masks, last = {}, 0
  for _, slot in ipairs(slots) do
    local at, mask = bit_of(slot)
    masks[at], last = bit.bor(masks[at] or 0, mask), math.max(last, at)
  end
  return masks, last
end

-- However many slots there are, the string is made anew once.
local function with_slots(taken, slots, is_taken)
  local masks, last = masks_of(slots)
  taken = taken .. string.rep('\0', last - #taken)
  local pieces, copied = {}, 0
  for at = 1, last do
    if masks[at] then
      pieces[#pieces + 1] = string.sub(taken, copied + 1, at - 1)
      pieces[#pieces + 1] = string.char(marked(string.byte(taken, at), masks[at], is_taken))
      copied = at
    end
  end
  pieces[#pieces + 1] = string.sub(taken, copied + 1)
  return table.concat(pieces)
end

-- A hold comes or goes. Nothing is noted where nothing has been asked, and nothing lies in the row.
function Book:mark_slots(hold, is_taken)
  if self.taken then
    self.taken = with_slots(self.taken, Slots.read(hold.slots), is_taken)
  end
end

function Book:taken_slots()
  if not self.taken then
    self.taken = ''
    for _, hold in ipairs(self:holds()) do
      self:mark_slots(hold, true)
    end
  end
  return self.taken
end

-- Those of `own` and the lowest free ones, `units` of both. There are as many below the capacity as fit it.
function Book:free_slots(units, own)
  local taken, slots, at = self:taken_slots(), Slots.read(own), 1
  while #slots < units do
    at = string.find(taken, '[^\255]', at) or math.max(at, #taken + 1)
    local byte = string.byte(taken, at) or 0
    for slot = (at - 1) * 8, at * 8 - 1 do
      local _, mask = bit_of(slot)
      if #slots < units and bit.band(byte, mask) == 0 then
        slots[#slots + 1] = slot
      end
    end
    at = at + 1
  end
  table.sort(slots)
  return Slots.write(slots)
end
