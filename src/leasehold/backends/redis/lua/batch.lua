-- A batch that does not go the short way as a whole: one command after the other, each as it can.

-- Which run of which server this is. A server that may not be asked has one run for ever.
local function run_of_server()
  local told = redis.pcall('INFO', 'server')
  return type(told) == 'string' and string.match(told, 'run_id:(%x+)') or 'unknown'
end

-- How long nothing is granted yet, since this server has begun to run, or began to keep leases: the epoch
-- key, which is set on first sight, is gone with everything else, or is of another run. What an old
-- snapshot or a replica brings back is as good as nothing.
local function seconds_closed(epoch)
  local told = redis.pcall('GET', epoch)
  local run, since = string.match(type(told) == 'string' and told or '', '^(%w+) (%S+)$')
  since = tonumber(since)
  if not (since and since <= now and run == run_of_server()) then
    since = now
    redis.call('SET', epoch, run_of_server() .. ' ' .. string.format('%.17g', now))
  end
  return math.max(since + holdoff - now, 0)
end

local closed_for = holdoff and seconds_closed(KEYS[count + 1]) or 0

-- ---- what lies there -----------------------------------------------------------------------------

local rows = {}

for i, row in ipairs(redis.call('MGET', unpack(KEYS, 1, count))) do
  local format = row and string.byte(row, 3)
  if format and format ~= FORMAT and string.sub(row, 1, 2) == 'LH' then
    return {'I' .. format} -- of another release: nothing is granted at all
  end
  rows[KEYS[i]] = row
end

local function row_at(key)
  -- MGET says the same of a key that is missing and of one that is no string; GET tells.
  return redis.call('GET', key) or EMPTY
end

-- ---- one command ---------------------------------------------------------------------------------

local answer = {}
local pushes = {} -- to the caller's own inbox
local apply, failed -- once they are needed

local function send(key, wakeups)
  for _, wakeup in ipairs(wakeups) do
    if wakeup.inbox == inbox then
      pushes[#pushes + 1] = push(key, wakeup)
    elseif wakeup.inbox ~= '' then
      redis.pcall('PUBLISH', wakeup.inbox, push(key, wakeup)) -- a hint: it may fail
    end
  end
end

local function attempt(raw, key)
  local row = rows[key] or row_at(key)
  local reply, new_row, wakeups
  if closed_for == 0 then
    reply, new_row = short(raw, key, row, now, stamp, expires)
    if not reply then
      reply, new_row, wakeups = hand_on(raw, key, row, now, stamp, expires)
    end
  end
  if not reply then
    if not apply then
      apply, failed = whole_ledger()
    end
    reply, new_row, wakeups = apply(raw, key, row, now, stamp, expires, closed_for)
  end
  rows[key] = new_row
  if wakeups then
    send(key, wakeups)
  end
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

for i = 1, count do
  local ok, reply = pcall(attempt, ARGV[i + 1], KEYS[i])
  if not ok then
    local problem = text_of(reply)
    local of_all = find_any(problem, OF_ALL)
    if of_all then
      return redis.error_reply(string.sub(problem, of_all))
    end
    if not failed then
      apply, failed = whole_ledger()
    end
    reply = failed(find_any(problem, FORBIDDEN) and 'forbidden' or 'corrupt', problem)
  end
  answer[i] = reply
end

for _, wakeup in ipairs(pushes) do
  answer[#answer + 1] = wakeup
end
return answer
