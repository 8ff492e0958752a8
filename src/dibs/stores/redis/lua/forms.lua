-- What lies in Redis and what travels, as structs: little-endian, a text behind its length (`Ic0`). Doubles
-- carry all numbers: tokens stay below 2^53, and times keep their microseconds.

local FORMAT = 1 -- raised when an older release could no longer keep exclusion beside a newer one; it is
-- written out in EMPTY here, in IDLE and LONE (short.lua), and in AWAITED (handing.lua)

-- The parts of a row: one hold inside; counts of what is outside of it; which slots are taken.
local INNER, OUTER, TAKEN = 1, 2, 4

local ROW = '<c2BBddd' -- 'DI', format, parts, last, capacity, arrivals
local HOLD = 'ddddddddIc0Ic0Ic0Ic0Ic0Ic0Ic0Ic0Ic0Ic0' -- eight numbers, TEXTS, state, slots, detail

local COUNTS = '<ddddddd' -- used, how many holds, places and tombs are outside, due, horizon, doubt
local PLACE_ROW = '<dddddddddddIc0Ic0Ic0Ic0Ic0Ic0Ic0' -- eleven numbers, TEXTS

local PLAIN = '<BddI' -- an Acquire that asks for little: queue, ttl, patience, length of its texts
local ACQUIRE = '<dddddddBIc0Ic0Ic0Ic0Ic0Ic0Ic0'
-- Of both, and of a hold: id, lease, owner, note, inbox, address, trace.
local TEXTS = '<Ic0Ic0Ic0Ic0Ic0Ic0Ic0'
local RENEW = '<dIc0Ic0'
local RELEASE = '<ddIc0'

local EMPTY = 'DI\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- the row of a key that is missing
local SLOT_0 = '\0\0\0\0' -- slots are four bytes each

local INFINITY = math.huge
local LAST_TOKEN = 9007199254740992 -- tokens stay below
local END_OF_TIME = 7258118400000000 -- the year 2200 in microseconds: a stamp beyond it is no time

local DAY = 86400 -- so long a book is kept when nothing in it matters any more but its last token
local SLACK = 3600 -- expiries of what is outside of a row are moved at most this often

local function next_token(last, stamp, floor)
  local believable = stamp <= END_OF_TIME and stamp or 0
  return math.max(last + 1, floor + 1, believable)
end

-- How long Redis is to keep a book, in milliseconds.
local function keep_for(seconds)
  return math.ceil(math.max(1, math.min((seconds + DAY) * 1000, 1e14)))
end

-- An idle book is kept until the clock that seeds tokens has long passed its last token.
local function keep_idle_for(last, stamp)
  return last <= stamp and DAY * 1000 or keep_for((last - stamp) / 1e6)
end

-- So is one that says something for so many seconds.
local function keep_held_for(seconds, last, stamp)
  return math.max(keep_for(seconds), keep_idle_for(last, stamp))
end
