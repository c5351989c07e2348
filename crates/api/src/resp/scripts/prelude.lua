-- What scripts see, made once per Lua state out of Lua's own libraries and of `native`, the functions in Rust.
-- Returns the scripts' environment and the functions that run a script, load a library and run a function of one.
--
-- A state runs many scripts one after the other, so nothing that a script can reach may be changed by it: every
-- table here is shown through an empty one (`shown`), and what could write past a metatable looks for those.
--
-- A native function returns true and its results, or false and the text of an error, which is raised where the
-- script called: `pass` is always in tail position, so that level 3 is the script.
local native = ...
local G = {}
for name, value in pairs(_G) do G[name] = value end
local string, table, math, coroutine = string, table, math, coroutine
local error, type, select, tonumber, tostring, unpack = error, type, select, tonumber, tostring, unpack
local next, pairs, ipairs = next, pairs, ipairs
local rawget, rawset, setmetatable = rawget, rawset, setmetatable
local collectgarbage, setfenv = collectgarbage, setfenv
local floor = math.floor

local READONLY = 'Attempt to modify a readonly table'
local hidden = {}

local function shown(real)
  local proxy = {}
  hidden[proxy] = real
  return setmetatable(proxy, {
    __index = real,
    __newindex = function() error(READONLY, 2) end,
    __metatable = 'readonly',
  })
end

local function pass(ok, ...)
  if not ok then error((...), 3) end
  return ...
end

local function lib(functions)
  local made = {}
  for name, f in pairs(functions) do
    made[name] = function(...) return pass(f(...)) end
  end
  return made
end

-- What a run changes, and the next one finds as new.
local resumes, seed
-- The scripts' environment.
local env

-- Errors and how they are caught. What ended a script, its time for example, is not caught by it.

local function caught(ok, ...)
  if ok then return true, ... end
  local e = native.plain((...))
  if native.ended() then error(e, 0) end
  if type(e) == 'table' and type(rawget(e, 'err')) == 'string' then e = e.err end
  return false, e
end

local function rethrown(ok, ...)
  if ok then return true, ... end
  local e = native.plain((...))
  if native.ended() then error(e, 0) end
  return false, e
end

local pcall_, xpcall_ = pcall, xpcall
local function pcall(...) return caught(pcall_(...)) end
local function xpcall(f, handler)
  -- Nothing would end a handler of what ended the script: no hook runs while a hook's error is handled.
  return rethrown(xpcall_(f, function(e)
    if native.ended() or type(handler) ~= 'function' then return e end
    return handler(native.plain(e))
  end))
end

-- Coroutines. A resumed one takes a part of the C stack, which Lua 5.1 does not count.

local resume_, create = coroutine.resume, coroutine.create
local RESUMES_MAX = 100

local function resumed(...)
  resumes = resumes - 1
  return rethrown(...)
end

local function resume(co, ...)
  if resumes >= RESUMES_MAX then return false, 'C stack overflow' end
  if type(co) ~= 'thread' then error("bad argument #1 to 'resume' (coroutine expected)", 2) end
  resumes = resumes + 1
  return resumed(resume_(co, ...))
end

local function unwrapped(ok, ...)
  if ok then return ... end
  local e = ...
  if type(e) == 'string' then error(e, 3) end
  error(e, 0)
end

local function wrap(f)
  if type(f) ~= 'function' then error("bad argument #1 to 'wrap' (Lua function expected)", 2) end
  local co = create(f)
  return function(...) return unwrapped(resume(co, ...)) end
end

-- Tables that are shown can be looked at in every way, and changed in none.

local insert = table.insert
-- Without a bound a position far below 1 keeps the C code busy, where nothing ends it.
local BELOW_MAX = 1000000
-- What is larger becomes negative there.
local INTEGER_MAX = 2147483647

local function with(t) return hidden[t] or t end

local base = {
  _VERSION = _VERSION,
  assert = assert, error = error, getmetatable = getmetatable, rawequal = rawequal, select = select,
  tonumber = tonumber, tostring = tostring, type = type, gcinfo = gcinfo, ipairs = ipairs,
  pcall = pcall,
  xpcall = xpcall,
  next = function(t, ...) return next(hidden[t] or t, ...) end,
  pairs = function(t)
    local real = hidden[t]
    if real == nil then return pairs(t) end
    local copy = {}
    for name, value in next, real do copy[name] = value end
    return next, copy, nil
  end,
  rawget = function(t, ...) return rawget(hidden[t] or t, ...) end,
  rawset = function(t, ...)
    if hidden[t] ~= nil then error(READONLY, 0) end
    return rawset(t, ...)
  end,
  setmetatable = function(t, ...)
    if hidden[t] ~= nil then error(READONLY, 0) end
    return setmetatable(t, ...)
  end,
  collectgarbage = function(what, ...)
    native.check_time()
    if what == nil or what == 'collect' or what == 'count' then return collectgarbage(what or 'collect') end
    return 0
  end,
  unpack = function(t, i, j)
    if type(t) == 'table' then
      local from, to = i == nil and 1 or tonumber(i), j == nil and #t or tonumber(j)
      -- Lua 5.1 computes this with integers that overflow.
      if from and to and not (to - from < 8000) then error('too many results to unpack', 2) end
    end
    return unpack(t, i, j)
  end,
}

-- Text. Patterns are matched in Rust, which counts its steps: C code would neither end nor bound its stack.

local rep_, sub = string.rep, string.sub
local concat = table.concat
local find = native.text.find
-- Returns true and, if there is a match from a place on, where it begins and ends, and its captures; the last
-- argument says whether `^` is an anchor.
local match_at = native.text.match_at

local text = {}
for _, name in pairs({ 'byte', 'char', 'dump', 'format', 'len', 'lower', 'reverse', 'sub', 'upper' }) do
  text[name] = string[name]
end
text.find = function(...) return pass(find(...)) end
text.match = function(...) return pass(native.text.match(...)) end
text.rep = function(s, n, ...)
  local times = tonumber(n)
  if type(s) == 'string' and times then
    if s == '' then return '' end
    if times * #s > native.memory_max then error('not enough memory', 2) end
  end
  return rep_(s, n, ...)
end

text.gmatch = function(s, p)
  s, p = pass(native.text.texts('gmatch', s, p))
  local from = 1
  local function step(ok, first, last, ...)
    if not ok then error(first, 3) end
    if not first then return nil end
    -- An empty match moves on by one.
    from = last < first and last + 2 or last + 1
    return ...
  end
  return function() return step(match_at(s, p, from, false)) end
end
text.gfind = text.gmatch

-- What stands for `%1` and the like in a replacement.
local function expanded(replacement, whole, captures)
  local ok, made = native.text.expand(replacement, whole, unpack(captures))
  if not ok then error(made, 4) end
  return made
end

text.gsub = function(s, p, replacement, max)
  s, p = pass(native.text.texts('gsub', s, p))
  local kind = type(replacement)
  if kind == 'number' then replacement, kind = tostring(replacement), 'string' end
  if kind ~= 'string' and kind ~= 'table' and kind ~= 'function' then
    error("bad argument #3 to 'gsub' (string/function/table expected)", 2)
  end
  local most = #s + 1
  if max ~= nil then
    local number = tonumber(max)
    if not number then error("bad argument #4 to 'gsub' (number expected, got " .. type(max) .. ')', 2) end
    if number < most then most = number end
  end
  local anchored = sub(p, 1, 1) == '^'
  local parts, count, from, kept, length = {}, 0, 1, 1, #s
  local function add(ok, first, last, ...)
    if not ok then error(first, 3) end
    if not first then return false end
    count = count + 1
    local whole, value = sub(s, first, last), nil
    if kind == 'string' then
      value = expanded(replacement, whole, { ... })
    elseif kind == 'table' then
      value = replacement[(...)]
    else
      value = replacement(...)
    end
    if not value then
      value = whole
    elseif type(value) ~= 'string' and type(value) ~= 'number' then
      error('invalid replacement value (a ' .. type(value) .. ')', 3)
    end
    parts[#parts + 1] = sub(s, kept, first - 1)
    parts[#parts + 1] = value
    kept = last + 1
    -- An empty match keeps the byte after it.
    from = last < first and last + 2 or last + 1
    return true
  end
  while count < most and from <= length + 1 do
    if not add(match_at(s, p, from, true)) or anchored then break end
  end
  parts[#parts + 1] = sub(s, kept)
  return concat(parts), count
end

local function compiled(chunk, name)
  local f, problem = native.compile(chunk, name)
  if f == nil then return nil, problem end
  return setfenv(f, env)
end

base.loadstring = function(chunk, name)
  if type(chunk) ~= 'string' then
    error("bad argument #1 to 'loadstring' (string expected, got " .. type(chunk) .. ')', 2)
  end
  return compiled(chunk, name == nil and chunk or tostring(name))
end
-- The pieces are put together first: Lua 5.1's parser loses the chunk's name while it waits for one.
base.load = function(reader, name)
  if type(reader) ~= 'function' then
    error("bad argument #1 to 'load' (function expected, got " .. type(reader) .. ')', 2)
  end
  local pieces = {}
  while true do
    local piece = reader()
    if piece == nil or piece == '' then break end
    if type(piece) ~= 'string' then return nil, 'reader function must return a string' end
    pieces[#pieces + 1] = piece
  end
  return compiled(concat(pieces), name == nil and '=(load)' or tostring(name))
end

-- Redis's own generator: after `randomseed` it gives the same numbers.

local function random()
  -- 48 bits as two halves of 24, which doubles multiply exactly.
  local low, high = seed % 16777216, floor(seed / 16777216)
  local product = low * 15525485 + 11
  local carry = floor(product / 16777216)
  seed = product % 16777216 + ((high * 15525485 + low * 1502 + carry) % 16777216) * 16777216
  return floor(seed / 131072)
end

local numbers = {}
for name, value in pairs(math) do numbers[name] = value end
numbers.random = function(...)
  local low, high = ...
  local given = select('#', ...)
  local r = (random() % 2147483647) / 2147483647
  if given == 0 then return r end
  if given > 2 then error('wrong number of arguments', 2) end
  if given == 1 then low, high = 1, low end
  low, high = tonumber(low), tonumber(high)
  if not low or not high then error("bad argument #" .. given .. " to 'random' (number expected)", 2) end
  if low > high then error("bad argument #" .. given .. " to 'random' (interval is empty)", 2) end
  return floor(r * (high - low + 1)) + low
end
numbers.randomseed = function(new)
  new = tonumber(new)
  if not new then error("bad argument #1 to 'randomseed' (number expected)", 2) end
  seed = (new % 4294967296 - new % 1) * 65536 + 13070
end

-- JSON. What is decoded is read in Rust.

local null = native.null
local format = string.format
local DEPTH_MAX = 1000

local function quoted(value)
  return pass(native.text.json_quote(value))
end

-- How many items `t` has if it is an array; nil if it is an object.
local function items(t)
  local most, count = 0, 0
  for key in next, t do
    if type(key) ~= 'number' or key < 1 or floor(key) ~= key then return nil end
    if key > most then most = key end
    count = count + 1
  end
  if count == 0 then return nil end
  if most > count * 2 and most > 10 then return nil, true end
  return most
end

local function encode(value, out, depth)
  local kind = type(value)
  if kind == 'string' then
    out[#out + 1] = quoted(value)
  elseif kind == 'number' then
    if value ~= value or value == math.huge or value == -math.huge then
      return 'Cannot serialise number: must not be NaN or Inf'
    end
    out[#out + 1] = format('%.14g', value)
  elseif kind == 'boolean' then
    out[#out + 1] = tostring(value)
  elseif value == nil or value == null then
    out[#out + 1] = 'null'
  elseif kind == 'table' then
    depth = depth + 1
    if depth > DEPTH_MAX then return 'Cannot serialise, excessive nesting (' .. depth .. ')' end
    value = with(value)
    local most, sparse = items(value)
    if sparse then return 'Cannot serialise table: excessively sparse array' end
    if most then
      for i = 1, most do
        out[#out + 1] = i == 1 and '[' or ','
        local problem = encode(rawget(value, i), out, depth)
        if problem then return problem end
      end
      out[#out + 1] = ']'
    else
      out[#out + 1] = '{'
      local first = true
      for key, item in next, value do
        if not first then out[#out + 1] = ',' end
        first = false
        if type(key) == 'number' then
          out[#out + 1] = '"' .. format('%.14g', key) .. '":'
        elseif type(key) == 'string' then
          out[#out + 1] = quoted(key) .. ':'
        else
          return 'Cannot serialise ' .. type(key) .. ': table key must be a number or string'
        end
        local problem = encode(item, out, depth)
        if problem then return problem end
      end
      out[#out + 1] = '}'
    end
  else
    return 'Cannot serialise ' .. kind .. ': type not supported'
  end
end

local cjson = { null = null, _NAME = 'cjson', _VERSION = '2.1.0' }
cjson.encode = function(...)
  if select('#', ...) ~= 1 then error("bad argument #1 to 'encode' (expected 1 argument)", 2) end
  local out = {}
  local problem = encode((...), out, 0)
  if problem then error(problem, 2) end
  return concat(out)
end
cjson.decode = function(...)
  if select('#', ...) ~= 1 then error("bad argument #1 to 'decode' (expected 1 argument)", 2) end
  local given = ...
  if type(given) ~= 'string' and type(given) ~= 'number' then
    error("bad argument #1 to 'decode' (string expected, got " .. type(given) .. ')', 2)
  end
  native.check_time()
  return pass(native.json_decode(tostring(given)))
end

-- The library `redis`.

local redis = {
  LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3,
  REPL_NONE = 0, REPL_AOF = 1, REPL_SLAVE = 2, REPL_REPLICA = 2, REPL_ALL = 3,
  REDIS_VERSION = native.version, REDIS_VERSION_NUM = native.version_number,
  error_reply = function(...)
    local given = ...
    if select('#', ...) ~= 1 or type(given) ~= 'string' then
      return { err = 'ERR wrong number or type of arguments' }
    end
    -- A code is the first of several words.
    if sub(given, 1, 1) == '-' then given = sub(given, 2) end
    if not pass(find(given, ' ', 1, true)) then given = 'ERR ' .. given end
    return { err = given }
  end,
  status_reply = function(...)
    local given = ...
    if select('#', ...) ~= 1 or type(given) ~= 'string' then
      return { err = 'ERR wrong number or type of arguments' }
    end
    return { ok = given }
  end,
  sha1hex = function(...)
    if select('#', ...) ~= 1 then error({ err = 'ERR wrong number of arguments' }, 0) end
    local given = ...
    if type(given) == 'number' then given = tostring(given) end
    native.check_time()
    return native.sha1hex(type(given) == 'string' and given or '')
  end,
  log = function(...)
    local level = ...
    if select('#', ...) < 2 then error({ err = 'ERR redis.log() requires two arguments or more.' }, 0) end
    if type(level) ~= 'number' then
      error({ err = 'ERR First argument must be a number (log level).' }, 0)
    end
    if level < 0 or level > 3 then error({ err = 'ERR Invalid debug level.' }, 0) end
    local words = {}
    for i = 2, select('#', ...) do
      local word = select(i, ...)
      if type(word) == 'string' or type(word) == 'number' then words[#words + 1] = tostring(word) end
    end
    native.log(level, sub(concat(words, ' '), 1, 1024))
  end,
  setresp = function(...)
    local version = tonumber((...))
    if select('#', ...) ~= 1 then error({ err = 'ERR redis.setresp() requires one argument.' }, 0) end
    if version ~= 2 and version ~= 3 then error({ err = 'ERR RESP version must be 2 or 3.' }, 0) end
    native.set_version(version)
  end,
  set_repl = function(...)
    local flags = tonumber((...)) or 0
    if select('#', ...) ~= 1 then error({ err = 'ERR redis.set_repl() requires two arguments.' }, 0) end
    if flags < 0 or flags > 3 then
      local text = 'ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.'
      error({ err = text }, 0)
    end
  end,
  acl_check_cmd = function(name)
    if native.exists(tostring(name)) then return true end
    error({ err = 'ERR Invalid command passed to redis.acl_check_cmd()' }, 0)
  end,
  replicate_commands = function() return true end,
  breakpoint = function() return false end,
  debug = function() end,
}

-- Libraries of functions.

-- While a library is loaded, its functions so far, and their names.
local registered, names
local lower = string.lower

local function unless(holds, problem)
  if not holds then error({ err = 'ERR ' .. problem }, 0) end
end

-- What each named argument must be.
local function named(given)
  local function_name, callback, description, flags = nil, nil, nil, 0
  for name, value in next, with(given) do
    unless(type(name) == 'string', 'named argument key given to redis.register_function is not a string')
    local key = lower(name)
    if key == 'function_name' then
      unless(type(value) == 'string', 'function_name argument given to redis.register_function must be a string')
      function_name = value
    elseif key == 'description' then
      unless(type(value) == 'string', 'description argument given to redis.register_function must be a string')
      description = value
    elseif key == 'callback' then
      unless(type(value) == 'function', 'callback argument given to redis.register_function must be a function')
      callback = value
    elseif key == 'flags' then
      local problem = 'flags argument to redis.register_function must be a table representing function flags'
      unless(type(value) == 'table', problem)
      local seen = {}
      for _, flag in ipairs(with(value)) do
        local number = type(flag) == 'string' and native.flag(flag)
        unless(number, 'unknown flag given')
        if not seen[number] then flags = flags + number end
        seen[number] = true
      end
    else
      unless(false, 'unknown argument given to redis.register_function')
    end
  end
  unless(function_name, 'redis.register_function must get a function name argument')
  unless(callback, 'redis.register_function must get a callback argument')
  return function_name, callback, description, flags
end

local function register_function(...)
  local given, first, second = select('#', ...), ...
  unless(registered, 'redis.register_function can only be called on FUNCTION LOAD command')
  unless(given == 1 or given == 2, 'wrong number of arguments to redis.register_function')
  local name, callback, description, flags = first, second, nil, 0
  if given == 1 then
    local problem = 'calling redis.register_function with a single argument is only applicable to Lua table '
    unless(type(first) == 'table', problem .. '(representing named arguments).')
    name, callback, description, flags = named(first)
  else
    unless(type(first) == 'string', 'first argument to redis.register_function must be a string')
    unless(type(second) == 'function', 'second argument to redis.register_function must be a function')
  end
  -- As Redis says it, of functions too.
  local problem = 'Library names can only contain letters, numbers, or underscores(_) and must be at least one '
  unless(native.is_name(name), problem .. 'character long')
  unless(not names[lower(name)], 'Function already exists in the library')
  names[lower(name)] = true
  registered[#registered + 1] = { name = name, callback = callback, description = description, flags = flags }
end

-- The environment: what is absent is an error, and nothing is added.

local tables = {}
for name, f in pairs(table) do tables[name] = f end
tables.insert = function(t, ...)
  if hidden[t] ~= nil then error(READONLY, 0) end
  local given, position = select('#', ...), ...
  local place = given == 2 and tonumber(position) or 1
  if not (place >= -BELOW_MAX and place <= INTEGER_MAX) then
    error("bad argument #2 to 'insert' (position out of bounds)", 2)
  end
  return insert(t, ...)
end
-- Lua's own would compare and call for as long as they like where nothing asks for the time: of numbers in an order that was
-- made for it, `sort` compares each with each. A function in Lua has the time asked for.
local sort, getn = table.sort, table.getn
tables.sort = function(t, comes_first)
  if hidden[t] ~= nil then error(READONLY, 0) end
  if comes_first == nil then return sort(t, function(a, b) return a < b end) end
  if type(comes_first) ~= 'function' then
    error("bad argument #2 to 'sort' (function expected, got " .. type(comes_first) .. ')', 2)
  end
  return sort(t, function(a, b) return comes_first(a, b) end)
end
tables.foreach = function(t, f)
  for key, value in next, with(t) do
    local found = f(key, value)
    if found ~= nil then return found end
  end
end
tables.foreachi = function(t, f)
  for i = 1, getn(with(t)) do
    local found = f(i, rawget(with(t), i))
    if found ~= nil then return found end
  end
end

local threads = {
  create = create, resume = resume, running = coroutine.running, status = coroutine.status, wrap = wrap,
  yield = coroutine.yield,
}

base.string, base.table, base.math = shown(text), shown(tables), shown(numbers)
base.coroutine, base.redis, base.cjson = shown(threads), shown(redis), shown(cjson)
base.bit = shown(lib(native.bit))
setmetatable(base, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
env = shown(base)
base._G = env

-- Methods of texts.
local methods = G.getmetatable('')
methods.__index = text
methods.__metatable = shown({ __index = base.string })

-- Lua's own libraries are reached through nothing but what stands above.
local globals = _G
for name in pairs(G) do globals[name] = nil end

-- Runs `f` with commands; returns whether it ended well, and its result or its error.
local function with_commands(call, protected_call, f)
  resumes, seed = 0, native.seed()
  redis.call, redis.pcall = call, protected_call
  local ok, result = xpcall_(f, native.located)
  redis.call, redis.pcall = nil, nil
  return ok, result
end

local function run(script, keys, arguments, call, protected_call)
  rawset(base, 'KEYS', keys)
  rawset(base, 'ARGV', arguments)
  local ok, result = with_commands(call, protected_call, script)
  rawset(base, 'KEYS', nil)
  rawset(base, 'ARGV', nil)
  return ok, result
end

local function run_function(f, keys, arguments, call, protected_call)
  return with_commands(call, protected_call, function() return f(keys, arguments) end)
end

-- Runs a library's text without commands; returns whether it ended well, and what it has registered or its error.
local function load_library(chunk)
  resumes, seed, registered, names = 0, native.seed(), {}, {}
  redis.register_function = register_function
  local ok, result = xpcall_(chunk, native.located)
  redis.register_function = nil
  local functions = registered
  registered, names = nil, nil
  if ok then return true, functions end
  return false, result
end

return env, run, load_library, run_function
