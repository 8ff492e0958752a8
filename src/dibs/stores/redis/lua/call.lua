-- What every call begins with. Command i is about KEYS[i] and lies in ARGV[i + 1]; the caller's inbox comes
-- before them. Where they are unusual, three terms come last: two that only tests give (what time it is,
-- and the stamp), and the hold-off in seconds or nothing; where there is one, the last key is the epoch's.
--
-- The answer is a reply for each command, then what the caller's own inbox would have been sent. The answer
-- to a lone command that went the short way is its reply alone.

local inbox = ARGV[1]
local count = #ARGV - 1
local now, stamp, holdoff
local expires = true

if #KEYS ~= count then
  count = count - 3
  now, stamp = tonumber(ARGV[count + 2]), tonumber(ARGV[count + 3])
  holdoff = tonumber(ARGV[count + 4])
  expires = not now
end

if not now then
  local time = redis.call('TIME')
  stamp = time[1] * 1000000 + time[2]
  now = stamp / 1000000
end

if count == 1 and not holdoff then
  local row = redis.pcall('GET', KEYS[1]) or EMPTY
  local ok, reply = pcall(short, ARGV[2], KEYS[1], row, now, stamp, expires)
  if ok and reply then
    return reply -- and nothing of what follows is even defined
  end
end
