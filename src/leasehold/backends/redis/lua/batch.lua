-- A batch: command i is about KEYS[i] and lies in ARGV[i + 4]. The four before are the caller's inbox, then
-- two that only tests give (what time it is, and the stamp), then the hold-off in seconds or nothing; where
-- there is one, the first key is that of the epoch.
--
-- The answer is a reply for each command, then what the caller's own inbox would have been sent.

local inbox, now, stamp = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holdoff = tonumber(ARGV[4])
local expires = not now

if not now then
  local time = redis.call('TIME')
  stamp = tonumber(time[1]) * 1000000 + tonumber(time[2])
  now = stamp / 1000000
end

-- Which run of which server this is. A server that may not be asked has one run for ever.
local function run_of_server()
  local told = redis.pcall('INFO', 'server')
  return type(told) == 'string' and string.match(told, 'run_id:(%x+)') or 'unknown'
end

-- How long nothing is granted yet, since this server has begun to run, or began to keep leases: the epoch
-- key, which is set on first sight, is gone with everything else, or is of another run. What an old
-- snapshot or a replica brings back is as good as nothing.
local function seconds_closed()
  local told = redis.pcall('GET', KEYS[1])
  local run, since = string.match(type(told) == 'string' and told or '', '^(%w+) (%S+)$')
  since = tonumber(since)
  if not (since and since <= now and run == run_of_server()) then
    since = now
    redis.call('SET', KEYS[1], run_of_server() .. ' ' .. string.format('%.17g', now))
  end
  return math.max(since + holdoff - now, 0)
end

local skipped = holdoff and 1 or 0
local closed_for = holdoff and seconds_closed() or 0

-- ---- what lies there -----------------------------------------------------------------------------

local rows = {}

for i, row in ipairs(redis.call('MGET', unpack(KEYS, skipped + 1))) do
  local format = row and string.byte(row, 3)
  if format and format ~= FORMAT and string.sub(row, 1, 2) == 'LH' then
    return {'I' .. format} -- of another release: nothing is granted at all
  end
  rows[KEYS[skipped + i]] = row
end

local function row_at(key)
  -- MGET says the same of a key that is missing and of one that is no string; GET tells.
  return rows[key] or redis.call('GET', key) or EMPTY
end

-- ---- one command ---------------------------------------------------------------------------------

local answer = {}
local pushes = {}
local apply, push, failed -- once they are needed

local function send(key, wakeups)
  for _, wakeup in ipairs(wakeups) do
    if wakeup.inbox == inbox then
      pushes[#pushes + 1] = push(key, wakeup)
    elseif wakeup.inbox ~= '' then
      redis.pcall('PUBLISH', wakeup.inbox, push(key, wakeup)) -- a hint: it may fail
    end
  end
end

local function attempt(i)
  local raw, key = ARGV[i + 4], KEYS[skipped + i]
  local row = row_at(key)
  local short = closed_for == 0 and Short[string.sub(raw, 1, 1)]
  if short then
    local reply, new_row = short(raw, key, row, now, stamp, expires)
    if reply then
      rows[key] = new_row
      return reply
    end
  end
  if not apply then
    apply, push, failed = whole_ledger()
  end
  local reply, new_row, wakeups = apply(raw, key, row, now, stamp, expires, closed_for)
  rows[key] = new_row
  send(key, wakeups)
  return reply
end

-- Redis refuses these at the first write of a script, so nothing of the batch has been done.
local OF_ALL = {'OOM ', 'MISCONF ', 'READONLY ', 'NOREPLICAS '}

-- How servers say that an ACL is in the way.
local FORBIDDEN = {'NOPERM', 'ACL failure', 'The user executing the script'}

local function find_any(problem, words)
  for _, word in ipairs(words) do
    local at = string.find(problem, word, 1, true)
    if at then
      return at
    end
  end
end

-- An error's text; Redis 6 puts its place before it.
local function text_of(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

for i = 1, #KEYS - skipped do
  local ok, reply = pcall(attempt, i)
  if not ok then
    local problem = text_of(reply)
    local of_all = find_any(problem, OF_ALL)
    if of_all then
      return redis.error_reply(string.sub(problem, of_all))
    end
    if not failed then
      apply, push, failed = whole_ledger()
    end
    reply = failed(find_any(problem, FORBIDDEN) and 'forbidden' or 'corrupt', problem)
  end
  answer[i] = reply
end

for _, wakeup in ipairs(pushes) do
  answer[#answer + 1] = wakeup
end
return answer
