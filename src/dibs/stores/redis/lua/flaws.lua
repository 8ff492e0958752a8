-- core/ledger.py's `_flaw`: what is wrong with a command that no client of ours would send. Beyond that,
-- numbers must be such as a double can tell from their neighbours.

local Flaws = {}
local TOO_MANY = 'units and capacity must be at most ' .. MANY

local function is_finite(number)
  return number > -INFINITY and number < INFINITY
end

local function is_positive(number)
  return number > 0 and number < INFINITY
end

local function is_whole(number)
  return number % 1 == 0
end

-- A double can tell it from its neighbours.
local function is_exact(number)
  return is_whole(number) and number > -LAST_TOKEN and number < LAST_TOKEN
end

function Flaws.A(command)
  if not (is_whole(command.units) and is_whole(command.priority)) then
    return 'units and priority must be whole numbers'
  end
  if not (is_positive(command.ttl) and is_positive(command.patience)) then
    return 'ttl and patience must be positive'
  end
  if not (command.units >= 1 and command.floor >= 0 and command.floor < LAST_TOKEN) then
    return 'units must be at least 1, floor at least 0 and less than 2^53'
  end
  if not (command.lock_delay >= 0 and command.lock_delay < INFINITY) then
    return 'lock_delay must be finite and at least 0'
  end
  if command.units > MANY or command.capacity > MANY then
    return TOO_MANY
  end
  if not (is_exact(command.units) and is_exact(command.capacity) and is_exact(command.priority)
      and is_whole(command.floor) and command.floor + 1 < LAST_TOKEN) then
    return 'units, capacity, priority and floor must be whole numbers less than 2^53'
  end
end

function Flaws.N(command)
  if not is_positive(command.ttl) then
    return 'ttl must be positive'
  end
end

function Flaws.Z(command)
  if not (command.units >= 1) then
    return 'units must be at least 1'
  end
  if command.units > MANY then
    return TOO_MANY
  end
  if not (is_exact(command.units) and is_exact(command.seq)) then
    return 'units and seq must be whole numbers less than 2^53'
  end
end

function Flaws.X(command)
  if not (command.keep >= 0 and is_finite(command.keep)
      and command.bury >= 0 and is_finite(command.bury)) then
    return 'keep and bury must be finite and at least 0'
  end
end

function Flaws.F(command)
  return command.flaw
end
