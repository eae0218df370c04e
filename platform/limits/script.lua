-- All limits of a team, or of a target, in one call: check and reserve, settle, load, read. A target has rates and
-- leases, and no state.
--
-- KEYS[1]  hash: the state of the team, loaded from PostgreSQL. It is lost or kept as a whole.
--            epoch, server, zone, tracked   what was loaded, and into which process of Redis
--            loaded, checked                when that was, and when the process was checked last
--            n:KIND:SUBJECT                 number of runs, queued or streams that are reserved
--            a:SUBJECT                      sum of the reserved amounts
--            s:SUBJECT:PERIOD:START         spent in a period that began then
--            r:ID                           a reservation: flags, amount, time, subjects
-- KEYS[2]  hash: reservations that were settled while the state was missing or being rebuilt
-- KEYS[3]  string: exists while the state is being rebuilt
-- KEYS[4…] strings: the level of a rate and its time; those of the first request, of the second, and so on. After the
--          rates of a request with a lease, a sorted set: the ids of leases and when they expire
-- ARGV[1…] requests of the team that a process has at the same time, each a JSON document with `op` and its arguments
--
-- Amounts are whole units of 10^-10 dollars, and times are microseconds. Lua's numbers are exact up to 2^53, and all
-- limits are small enough for that. Numbers are written as text: JSON would cut them to 14 digits.

local state, settled, rebuilding = KEYS[1], KEYS[2], KEYS[3]
-- The present request, its text and its time.
local request, document, now

local function text(number)
    return string.format('%.0f', number)
end

-- A Redis that was restarted from an old file, or replaced by a replica, has an old state: it must be rebuilt. INFO takes
-- 30 microseconds, and no restart less than this interval.
local CHECK = 50000

local function server()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
end

-- A rate is a leaky bucket, which is GCRA without fractions: a unit fills it by `period` and each tick drains it by
-- `limit`, so that level and capacity are integers. A tick is a microsecond, or `tick` of them.
local function write_rate(rate)
    if rate.level > 0 then
        local left = math.ceil(rate.level / rate.limit * rate.tick / 1000) + 1000
        redis.call('SET', rate.key, text(rate.at) .. ' ' .. text(rate.level), 'PX', text(left))
    else
        redis.call('DEL', rate.key)
    end
end

local function read_rate(rate)
    rate.at, rate.level = math.floor(now / rate.tick), 0
    local stored = redis.call('GET', rate.key)
    if not stored then
        return
    end
    local then_at, then_level = string.match(stored, '(%d+) (%d+)')
    local passed = rate.at - tonumber(then_at)
    rate.level = math.max(0, tonumber(then_level) - math.max(0, passed) * rate.limit)
    if passed * rate.tick < -1000000 then
        -- The clock was set back. With the old time, nothing would drain until it comes again.
        write_rate(rate)
    elseif passed < 0 then
        rate.at = tonumber(then_at)
    end
end

local function left_of(rate)
    return math.max(0, math.floor((rate.limit * rate.period - rate.level) / rate.period))
end

local function ticks(rate, amount)
    return math.ceil(amount / rate.limit) * rate.tick
end

local function add_rates(reply, rates)
    for _, rate in ipairs(rates) do
        reply[#reply + 1] = text(rate.taken or 0)
        reply[#reply + 1] = text(left_of(rate))
        reply[#reply + 1] = text(ticks(rate, rate.level))
    end
    return reply
end

-- Reservations: "FLAGS AMOUNT TIME" and the subjects, each on its own line (ids of end users may contain anything else).
local KINDS = {{'R', 'runs'}, {'Q', 'queued'}, {'S', 'streams'}}

local function parse(entry)
    local head, rest = string.match(entry, '^([^\n]*)\n(.*)$')
    local flags, amount, at = string.match(head, '^(%u*) (%d+) (%d+)$')
    local subjects = {}
    for subject in string.gmatch(rest, '[^\n]+') do
        subjects[#subjects + 1] = subject
    end
    return {flags = flags, amount = tonumber(amount), at = at, subjects = subjects}
end

local function count(entry, sign)
    for _, subject in ipairs(entry.subjects) do
        for _, kind in ipairs(KINDS) do
            if string.find(entry.flags, kind[1], 1, true) then
                redis.call('HINCRBY', state, 'n:' .. kind[2] .. ':' .. subject, sign)
            end
        end
        if entry.amount > 0 then
            redis.call('HINCRBY', state, 'a:' .. subject, text(sign * entry.amount))
        end
    end
end

local function store(id, entry)
    local line = entry.flags .. ' ' .. text(entry.amount) .. ' ' .. entry.at .. '\n'
    redis.call('HSET', state, 'r:' .. id, line .. table.concat(entry.subjects, '\n'))
end

local function spend(subjects, cost, starts, tracked)
    if cost <= 0 then
        return
    end
    for _, subject in ipairs(subjects) do
        for period, start in pairs(starts) do
            local name = string.sub(subject, 1, 1) .. period
            if string.find(tracked, ' ' .. name .. ' ', 1, true) then
                redis.call('HINCRBY', state, 's:' .. subject .. ':' .. period .. ':' .. text(start), text(cost))
            end
        end
    end
end

local function number(field)
    return tonumber(redis.call('HGET', state, field) or 0)
end

-- What was spent in the present period, and what may have been recorded in the next one by a process whose clock is
-- ahead. Both are compared with the budget.
local function spent(budget)
    local start = budget.start
    if now >= budget.stop then
        start = budget.stop
    end
    local prefix = 's:' .. budget.subject .. ':' .. budget.period .. ':'
    return number(prefix .. text(start)), number(prefix .. text(budget.stop))
end

local function is_stale()
    local found = redis.call('HMGET', state, 'epoch', 'server', 'zone', 'tracked', 'checked')
    if not found[1] or found[3] ~= request.zone or tonumber(found[1]) <= request.after then
        return true
    end
    if math.abs(now - tonumber(found[5])) > CHECK then
        if found[2] ~= server() then
            return true
        end
        redis.call('HSET', state, 'checked', text(now))
    end
    for _, budget in ipairs(request.budgets) do
        local name = string.sub(budget.subject, 1, 1) .. budget.period
        if not string.find(found[4], ' ' .. name .. ' ', 1, true) then
            return true
        end
    end
    return false, found[1]
end

-- A lease counts until it is released. If its process dies, it counts until it expires.
local function write_leases(ids)
    local lease = request.lease
    for _, id in ipairs(ids) do
        redis.call('ZADD', lease.key, text(now + lease.lifetime), id)
    end
    redis.call('PEXPIRE', lease.key, text(math.ceil(lease.lifetime / 1000) + 1000))
end

local ops = {}

function ops.reserve()
    local epoch = '0'
    if request.stateful then
        local stale
        stale, epoch = is_stale()
        if stale then
            return {'stale'}
        end
    end
    -- Whatever this id has reserved before is replaced.
    local old = {flags = '', amount = 0, subjects = {}}
    if request.stateful then
        local entry = redis.call('HGET', state, 'r:' .. request.id)
        if entry then
            old = parse(entry)
        end
    end

    -- The refusal that lasts longest is reported; one of a budget before all others.
    local refusal, longest
    for place, rate in ipairs(request.rates) do
        read_rate(rate)
        -- An estimate never refuses the first request of an empty window: it takes all of it.
        rate.taken = math.min(rate.cost, rate.limit)
        local over = rate.level + rate.taken * rate.period - rate.limit * rate.period
        if rate.taken > 0 and over > 0 then
            local wait = ticks(rate, over)
            if not longest or wait > longest then
                refusal, longest = {'rate', place, wait, rate.limit - left_of(rate)}, wait
            end
        end
    end
    for place, count in ipairs(request.counts) do
        local taken = number('n:' .. count.kind .. ':' .. count.subject)
        for _, kind in ipairs(KINDS) do
            if kind[2] == count.kind and string.find(old.flags, kind[1], 1, true) then
                taken = taken - 1
            end
        end
        if taken >= count.limit and not longest then
            refusal, longest = {'count', place, 0, taken}, 0
        end
    end
    local lease = request.lease
    if lease then
        redis.call('ZREMRANGEBYSCORE', lease.key, '-inf', text(now))
        local taken = redis.call('ZCARD', lease.key)
        if taken >= lease.limit and not longest and not redis.call('ZSCORE', lease.key, request.id) then
            refusal, longest = {'lease', 1, 0, taken}, 0
        end
    end
    local amount = request.want
    for place, budget in ipairs(request.budgets) do
        local present, next = spent(budget)
        local reserved = number('a:' .. budget.subject) - old.amount
        local left = budget.amount - math.max(present, next) - reserved
        if left < request.least then
            -- Unless reservations only have to be settled for it to fit, the same request fails until the period ends.
            local kind = 'budget'
            if left + reserved >= request.least then
                kind = 'reserved'
            end
            if not refusal or (kind == 'budget' and refusal[1] ~= 'budget') then
                refusal = {kind, place, math.max(0, budget.stop - now), math.max(present, next), reserved}
            end
        end
        amount = math.min(amount, left)
    end

    if refusal then
        for _, rate in ipairs(request.rates) do
            rate.taken = 0
        end
        local reply = {'refused', text(now), refusal[1], text(refusal[2]), text(refusal[3]), text(refusal[4]),
                       text(refusal[5] or 0)}
        return add_rates(reply, request.rates)
    end

    for _, rate in ipairs(request.rates) do
        if rate.taken > 0 then
            rate.level = rate.level + rate.taken * rate.period
            write_rate(rate)
        end
    end
    if lease then
        write_leases({request.id})
    end
    if request.stateful then
        count(old, -1)
        local entry = {flags = request.flags, amount = amount, at = text(now), subjects = request.subjects}
        count(entry, 1)
        store(request.id, entry)
        redis.call('HDEL', settled, request.id)
    end
    return add_rates({'ok', text(now), epoch, text(amount)}, request.rates)
end

-- The difference between what was taken and what was used goes back. What has drained since then does not: the window
-- would let more pass than if only the actual amount had been taken.
local function settle_rates()
    for _, rate in ipairs(request.rates) do
        read_rate(rate)
        local back = (rate.taken - rate.used) * rate.period
        if back > 0 then
            local drained = math.max(0, rate.at - math.floor(rate.since / rate.tick)) * rate.limit
            rate.level = math.max(0, rate.level - math.max(0, back - drained))
        else
            rate.level = rate.level - back
        end
        write_rate(rate)
    end
end

-- After the commit that deleted the row of the reservation, or that set its amount to zero if `keep`.
function ops.settle()
    settle_rates()
    if not request.stateful then
        return {'ok'}
    end
    local found = redis.call('HMGET', state, 'epoch', 'tracked', 'zone', 'r:' .. request.id)
    if not found[1] or not found[4] or redis.call('EXISTS', rebuilding) == 1 then
        -- A rebuild may have read the rows before that commit. It then loads a reservation that is listed here.
        local earlier = redis.call('HGET', settled, request.id)
        redis.call('HSET', settled, request.id, (earlier and earlier .. ',' or '') .. document)
        redis.call('EXPIRE', settled, 120)
    end
    if not found[1] or not found[4] then
        if request.cost > 0 then
            -- A rebuild or the sweeper has dropped the reservation, maybe before what it has cost was committed.
            redis.call('HDEL', state, 'epoch')
        end
        return {'unknown'}
    end
    local entry = parse(found[4])
    if found[3] ~= request.zone then
        -- The start of the period would be wrong.
        redis.call('HDEL', state, 'epoch')
    end
    count(entry, -1)
    spend(entry.subjects, request.cost, request.starts, found[2])
    if request.keep then
        entry.amount = 0
        count(entry, 1)
        store(request.id, entry)
    else
        redis.call('HDEL', state, 'r:' .. request.id)
    end
    return {'ok'}
end

-- Also adds leases that a restart of Redis has lost.
function ops.renew()
    write_leases(request.ids)
    return {'ok'}
end

function ops.release()
    redis.call('ZREM', request.lease.key, request.id)
    return {'ok'}
end

-- A call was made without a reservation: its cost is only known to PostgreSQL.
function ops.forget()
    redis.call('HDEL', state, 'epoch')
    return {'ok'}
end

function ops.load()
    local found = redis.call('HMGET', state, 'epoch', 'server')
    if found[1] and tonumber(found[1]) >= request.epoch and found[2] == server() then
        return {'older'}
    end
    redis.call('DEL', state)
    redis.call('HSET', state, 'epoch', text(request.epoch), 'server', server(), 'zone', request.zone,
               'tracked', request.tracked, 'loaded', text(now), 'checked', text(now))
    for _, pair in ipairs(request.spent) do
        redis.call('HINCRBY', state, pair[1], text(pair[2]))
    end
    for _, row in ipairs(request.rows) do
        local entry = {flags = row[2], amount = row[3], at = text(row[4]), subjects = row[5]}
        local settlements = redis.call('HGET', settled, row[1])
        local keeps, reserved = true, entry.amount
        for _, settlement in ipairs(cjson.decode('[' .. (settlements or '') .. ']')) do
            -- A row that was kept with an amount of zero was read after that commit, and so was its cost.
            if reserved > 0 or not settlement.keep then
                spend(entry.subjects, settlement.cost, settlement.starts, request.tracked)
            end
            entry.amount, keeps = 0, settlement.keep
        end
        if keeps then
            count(entry, 1)
            store(row[1], entry)
        end
    end
    if redis.call('GET', rebuilding) == request.token then
        redis.call('DEL', rebuilding)
    end
    return {'ok'}
end

function ops.status()
    local reply, stale = {'ok', text(now)}, false
    if request.stateful then
        stale = is_stale()
        if stale then
            return {'stale'}
        end
    end
    for _, rate in ipairs(request.rates) do
        read_rate(rate)
    end
    add_rates(reply, request.rates)
    for _, count in ipairs(request.counts) do
        reply[#reply + 1] = text(number('n:' .. count.kind .. ':' .. count.subject))
    end
    for _, budget in ipairs(request.budgets) do
        reply[#reply + 1] = text(math.max(spent(budget)))
        reply[#reply + 1] = text(number('a:' .. budget.subject))
    end
    return reply
end

local time = redis.call('TIME')
local replies, key = {}, 3
for place, argument in ipairs(ARGV) do
    document, request = argument, cjson.decode(argument)
    now = request.now or time[1] * 1000000 + time[2]
    for _, rate in ipairs(request.rates or {}) do
        key = key + 1
        rate.key = KEYS[key]
    end
    if request.lease then
        key = key + 1
        request.lease.key = KEYS[key]
    end
    replies[place] = table.concat(ops[request.op](), ' ')
end
-- One text: clients read it in one step, and an array of twenty in forty.
return table.concat(replies, '\n')
