"""The Lua scripts of `talweg.metadata.redis`, and the keys that they work on.

A script runs on one node and nothing runs beside it, so each is a transaction. All keys but the marks lie
in one hash slot, named by KEYS in the order of `Key`; their prefix and the hash tag are the caller's.

    state          hash    format, version, forgotten; the lease: holder, endpoint, epoch, expires_us;
                           and history: the replication id of the node that the lease was taken on
    topic          hash    name → JSON               so too assignment (topic/partition), broker, producer,
                                                     consumer, removed (incarnation)
    directory      hash    a broker's incarnation → its number
    changes        zset    kind:field of every record, by the version of its last change
    removals       zset    incarnations of deleted topics, by version
    clients        zset    kind:field of producers and consumers, by their topic's incarnation
    heard_…        hash    number → timestamp of the last heartbeat

`history` is what notices that a replica was promoted, or a node restarted: the replication id is then
another one. The lease is void in that moment, and nobody writes until it has been taken again.
"""

from enum import IntEnum
from typing import Final


class Key(IntEnum):
    """The keys by their place in KEYS, from 1 as Lua counts."""

    state = 1
    topic = 2
    assignment = 3
    broker = 4
    producer = 5
    consumer = 6
    removed = 7
    directory = 8
    changes = 9
    removals = 10
    clients = 11
    heard_broker = 12
    heard_producer = 13
    heard_consumer = 14


_PREAMBLE: Final = (
    "".join(f"local {key.name} = KEYS[{key.value}]\n" for key in Key)
    + """
local records = {topic = topic, assignment = assignment, broker = broker, producer = producer,
                 consumer = consumer, removed = removed, directory = directory}
local heard = {broker = heard_broker, producer = heard_producer, consumer = heard_consumer}

-- Lua would write large numbers with an exponent.
local function text(number) return string.format('%.0f', number) end

local function replication()
  local info = redis.call('INFO', 'replication')
  return string.match(info, 'master_replid:(%x+)'), tonumber(string.match(info, 'connected_slaves:(%d+)'))
end

local function holds(epoch)
  local lease = redis.call('HMGET', state, 'holder', 'epoch', 'history')
  return lease[1] and lease[2] == epoch and lease[3] == (replication())
end
"""
)

# ARGV: epoch, plan (JSON), deleted topics to remember, versions of an epoch.
# The plan: checks [kind, field, wanted] with wanted -1 absent, 0 present, else the version; drops
# [kind, field]; puts [kind, field, JSON, topic incarnation or -1, heartbeat or -1]; clients_of an incarnation
# or -1, which are dropped; names [incarnation of a data directory, number].
# Answers: 'lost', 0 | 'refused', number of the first check that failed, 0 | 'done', version, replicas.
COMMIT: Final = (
    _PREAMBLE
    + """
if not holds(ARGV[1]) then return {'lost', 0} end
local plan = cjson.decode(ARGV[2])

for number, check in ipairs(plan.checks) do
  local kind, field, wanted = check[1], check[2], check[3]
  local there = redis.call('HEXISTS', records[kind], field) == 1
  if wanted < 0 then
    if there then return {'refused', number, 0} end
  elseif not there then
    return {'refused', number, 0}
  elseif wanted > 0 and tonumber(redis.call('ZSCORE', changes, kind .. ':' .. field)) ~= wanted then
    return {'refused', number, 0}
  end
end

local version = tonumber(redis.call('HGET', state, 'version'))
if version + #plan.puts >= (tonumber(ARGV[1]) + 1) * tonumber(ARGV[4]) then return {'lost', 0} end

local function drop(kind, field)
  redis.call('HDEL', records[kind], field)
  redis.call('ZREM', changes, kind .. ':' .. field)
  if heard[kind] then redis.call('HDEL', heard[kind], field) end
end

for _, gone in ipairs(plan.drops) do drop(gone[1], gone[2]) end
if plan.clients_of >= 0 then
  local score = text(plan.clients_of)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', clients, score, score)) do
    drop(string.match(member, '^(%a+):(.*)$'))
  end
  redis.call('ZREMRANGEBYSCORE', clients, score, score)
end

for _, put in ipairs(plan.puts) do
  local kind, field, value, incarnation, heard_us = put[1], put[2], put[3], put[4], put[5]
  version = version + 1
  redis.call('HSET', records[kind], field, value)
  redis.call('ZADD', changes, text(version), kind .. ':' .. field)
  if incarnation >= 0 then redis.call('ZADD', clients, text(incarnation), kind .. ':' .. field) end
  if heard_us >= 0 and heard_us > (tonumber(redis.call('HGET', heard[kind], field)) or -1) then
    redis.call('HSET', heard[kind], field, text(heard_us))
  end
  if kind == 'removed' then redis.call('ZADD', removals, text(version), field) end
end
for _, name in ipairs(plan.names) do redis.call('HSET', directory, name[1], name[2]) end

local excess = redis.call('ZCARD', removals) - tonumber(ARGV[3])
if excess > 0 then
  local oldest = redis.call('ZRANGE', removals, 0, excess - 1, 'WITHSCORES')
  for place = 1, #oldest, 2 do
    drop('removed', oldest[place])
    redis.call('HSET', state, 'forgotten', oldest[place + 1])
  end
  redis.call('ZREMRANGEBYRANK', removals, 0, excess - 1)
end

redis.call('HSET', state, 'version', text(version))
local _, replicas = replication()
return {'done', text(version), replicas}
"""
)

# ARGV: holder, endpoint, now, expires, epoch that was taken for it, format, versions of an epoch.
# Answers 1 when the lease was given.
ACQUIRE: Final = (
    _PREAMBLE
    + """
local held = redis.call('HMGET', state, 'holder', 'expires_us', 'epoch', 'history')
if held[1] and held[1] ~= ARGV[1] and tonumber(ARGV[3]) < tonumber(held[2]) then return 0 end
if held[3] and tonumber(ARGV[5]) <= tonumber(held[3]) then return 0 end
local history = replication()
local version = text(tonumber(ARGV[5]) * tonumber(ARGV[7]))
redis.call('HSETNX', state, 'format', ARGV[6])
redis.call('HSETNX', state, 'forgotten', 0)
redis.call('HSET', state, 'holder', ARGV[1], 'endpoint', ARGV[2], 'expires_us', ARGV[4], 'epoch', ARGV[5],
           'history', history, 'version', version)
-- The node has been another since: it may lack changes that were seen, so all who follow begin anew.
if held[4] ~= history then redis.call('HSET', state, 'forgotten', version) end
return 1
"""
)

# ARGV: epoch, expires (empty: give it back). Answers holder and endpoint, or nothing when the lease is lost.
RENEW: Final = (
    _PREAMBLE
    + """
if not holds(ARGV[1]) then return {} end
if ARGV[2] == '' then
  redis.call('HDEL', state, 'holder')
  return {}
end
redis.call('HSET', state, 'expires_us', ARGV[2])
return redis.call('HMGET', state, 'holder', 'endpoint')
"""
)

# ARGV: epoch, kind, timestamp, numbers. Answers whether the lease holds.
HEARTBEATS: Final = (
    _PREAMBLE
    + """
if not holds(ARGV[1]) then return 0 end
local kind, at = ARGV[2], ARGV[3]
for place = 4, #ARGV do
  local before = redis.call('HGET', heard[kind], ARGV[place])
  if before and tonumber(before) < tonumber(at) then redis.call('HSET', heard[kind], ARGV[place], at) end
end
return 1
"""
)

# ARGV: kind, fields (none: all). Answers field, JSON, version, heartbeat of each that there is.
READ: Final = (
    _PREAMBLE
    + """
local kind, fields, answer = ARGV[1], {}, {}
if #ARGV == 1 then fields = redis.call('HKEYS', records[kind]) end
for place = 2, #ARGV do fields[place - 1] = ARGV[place] end
for _, field in ipairs(fields) do
  local value = redis.call('HGET', records[kind], field)
  if value then
    answer[#answer + 1] = {field, value, redis.call('ZSCORE', changes, kind .. ':' .. field),
                           heard[kind] and redis.call('HGET', heard[kind], field) or '0'}
  end
end
return answer
"""
)

# ARGV: since, limit. Answers the state's fields and, for each change, kind, JSON, version, heartbeat.
CHANGES: Final = (
    _PREAMBLE
    + """
local found = {}
local members = redis.call('ZRANGEBYSCORE', changes, '(' .. ARGV[1], '+inf', 'WITHSCORES',
                           'LIMIT', 0, tonumber(ARGV[2]) + 1)
for place = 1, #members, 2 do
  local kind, field = string.match(members[place], '^(%a+):(.*)$')
  found[#found + 1] = {kind, redis.call('HGET', records[kind], field), members[place + 1],
                       heard[kind] and redis.call('HGET', heard[kind], field) or '0'}
end
return {redis.call('HGETALL', state), found}
"""
)

# KEYS: the marks of one slot. ARGV: sequence, first, next. Claims the numbers from `first` up to `next`
# (exclusive) unless some of them are taken. Answers whether they are ours, the mark, and the replicas.
CLAIM: Final = """
local info = redis.call('INFO', 'replication')
local replicas = tonumber(string.match(info, 'connected_slaves:(%d+)'))
local mark = tonumber(redis.call('HGET', KEYS[1], ARGV[1])) or 0
if mark > tonumber(ARGV[2]) then return {0, string.format('%.0f', mark), 0} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {1, ARGV[3], replicas}
"""
