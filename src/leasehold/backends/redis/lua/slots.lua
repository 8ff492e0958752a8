-- Which slots of a book are taken: a bit for each, the lowest first, in a string that lies in the row, so that
-- whoever wants a free one need not read every hold.

local function bit_of(slot)
  return math.floor(slot / 8) + 1, bit.lshift(1, slot % 8)
end

local function with_slot(taken, slot, is_taken)
  local at, mask = bit_of(slot)
  if at > #taken then
    taken = taken .. string.rep('\0', at - #taken)
  end
  local byte = string.byte(taken, at)
  byte = is_taken and bit.bor(byte, mask) or bit.band(byte, bit.bnot(mask))
  return string.sub(taken, 1, at - 1) .. string.char(byte) .. string.sub(taken, at + 1)
end

-- A hold comes or goes. Nothing is noted where nothing has been asked, and nothing lies in the row.
function Book:mark_slots(hold, is_taken)
  if self.taken then
    for _, slot in ipairs(Slots.read(hold.slots)) do
      self.taken = with_slot(self.taken, slot, is_taken)
    end
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
