-- model.py's wakeups, as they are published: a mark, the format, then a struct.

local PUSH = '<c2BdddIc0Ic0Ic0Ic0Ic0Ic0Ic0'

local function push(key, wakeup)
  return struct.pack(PUSH, 'DI', FORMAT, wakeup.token, wakeup.granted_at, wakeup.window,
    #key, key, #wakeup.lease, wakeup.lease, #wakeup.inbox, wakeup.inbox,
    #wakeup.event, wakeup.event, #wakeup.slots, wakeup.slots, #wakeup.detail, wakeup.detail,
    #wakeup.proof, wakeup.proof)
end
