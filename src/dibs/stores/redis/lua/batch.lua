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
  if format and format ~= FORMAT and string.sub(row, 1, 2) == 'DI' then
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
local news = {} -- who is to be woken, for each command
local apply, failed -- once they are needed
local last_of = {} -- which command is the last one about each key
local unwritten = {} -- those whose changes wait to be written together, for each key

for i = 1, count do
  last_of[KEYS[i]] = i
end

local function attempt(i, more)
  news[i] = nil -- of an earlier attempt, which came to nothing
  local raw, key = ARGV[i + 1], KEYS[i]
  local row = rows[key] or row_at(key)
  local reply, new_row, wakeups, waits
  if closed_for == 0 and not unwritten[key] then
    reply, new_row = short(raw, key, row, now, stamp, expires)
    if not reply then
      reply, new_row, wakeups = hand_on(raw, key, row, now, stamp, expires)
    end
  end
  if not reply then
    if not apply then
      apply, failed = whole_ledger()
    end
    reply, new_row, wakeups, waits =
      apply(raw, key, row, now, stamp, expires, closed_for, more)
  end
  rows[key], news[i] = new_row, wakeups
  if waits then
    unwritten[key] = unwritten[key] or {}
    table.insert(unwritten[key], i)
  else
    unwritten[key] = nil
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

local function reply_to(i, ok, reply)
  if ok then
    return reply
  end
  if not failed then
    apply, failed = whole_ledger()
  end
  local problem = text_of(reply)
  return failed(find_any(problem, FORBIDDEN) and 'forbidden' or 'corrupt', problem)
end

-- A command failed half-way, and the changes of others before it were to be written with its own: all of
-- them are done again, each by itself, from what lies in Redis.
local function do_again(key, i)
  local again = unwritten[key]
  unwritten[key] = nil
  for _, earlier in ipairs(again) do
    answer[earlier] = reply_to(earlier, pcall(attempt, earlier, false))
  end
  return pcall(attempt, i, false)
end

for i = 1, count do
  local key = KEYS[i]
  local ok, reply = pcall(attempt, i, i < last_of[key])
  local of_all = not ok and find_any(text_of(reply), OF_ALL)
  if of_all then
    return redis.error_reply(string.sub(text_of(reply), of_all))
  end
  if not ok and unwritten[key] then
    ok, reply = do_again(key, i)
  end
  answer[i] = reply_to(i, ok, reply)
end

-- ---- who is to be woken --------------------------------------------------------------------------

-- Whoever was the head for a moment in the midst of the batch need not know.
local heads, woken = {}, {}

local function is_news(key, wakeup)
  local is_head = wakeup.event == 'head'
  local is_old = is_head and (heads[key] or woken[wakeup.lease])
  heads[key] = heads[key] or is_head
  woken[wakeup.lease] = true
  return not is_old
end

local letters = {} -- for each inbox what it is sent; and the inboxes, in order

local function write(told, to)
  if to ~= '' then
    if not letters[to] then
      letters[to] = {}
      letters[#letters + 1] = to
    end
    table.insert(letters[to], 1, told)
  end
end

for i = count, 1, -1 do
  local wakeups = news[i] or {}
  for n = #wakeups, 1, -1 do
    if is_news(KEYS[i], wakeups[n]) then
      write(push(KEYS[i], wakeups[n]), wakeups[n].inbox)
    end
  end
end

for _, to in ipairs(letters) do
  if to == inbox then
    answer[#answer + 1] = table.concat(letters[to]) -- the caller's own goes with the answer
  else
    redis.pcall('PUBLISH', to, table.concat(letters[to])) -- a hint: it may fail
  end
end
return answer
