"""The Lua scripts of the Redis sink, and their arguments (pure)."""

from collections.abc import Callable, Sequence
from typing import Final

from cdc.model.event import parse_object
from sinks.redis.layout import TableLayout, fields_of

EPOCH_LENGTH: Final = 4
"""The first digits of a tag."""

FENCED: Final = b"f"
"""A guarded script's answer when another job has become the writer: it looked at none of its rows."""

Argument = str | bytes | int

# Tags are compared as the numbers that their bytes are. Lua's ``<`` on text is ``strcoll``, and the server has the
# collation of the environment in which it was started: in Danish ``aa`` comes after ``b``. The numbers have 48 bits,
# since Lua's are doubles.
_IS_NEWER: Final = """
local call, try, sub, numbers = redis.call, redis.pcall, string.sub, struct.unpack
local function is_newer(tag, other)
  local a, b, c = numbers('>I6I6I6', tag)
  local d, e, f = numbers('>I6I6I6', other)
  if a ~= d then return a > d end
  if b ~= e then return b > e end
  if c ~= f then return c > f end
  a, b = numbers('>I6I4', tag, 19)
  d, e = numbers('>I6I4', other, 19)
  if a ~= d then return a > d end
  return b > e
end
"""

# KEYS: rows.
# ARGV: the milliseconds that a deletion is remembered; '1' if an equal tag replaces the row; then for each row its tag,
# directly followed by its JSON, or by nothing for a deletion. Both are one argument, since each argument costs the
# client more than the server.
# Returns a letter per row: 1 written, 0 the server has it already, w another application's key. An error of any other
# kind ends the script. What was written stays, and the caller repeats everything. If none of the keys exists, as when a
# generation is filled, one look is enough for all. A key comes twice if the type of a row's key has changed: 1 and '1'.
PLAIN: Final = (
    _IS_NEWER
    + """
local ttl, overwrite_equal_tags, outcome = ARGV[1], ARGV[2] == '1', {}
local function are_new()
  if call('EXISTS', unpack(KEYS)) > 0 then return false end
  local came = {}
  for _, key in ipairs(KEYS) do
    if came[key] then return false end
    came[key] = true
  end
  return true
end

if are_new() then
  for n, key in ipairs(KEYS) do
    local argument = ARGV[n + 2]
    if #argument == 28 then
      call('HSET', key, 't', argument, 'x', '1')
      call('PEXPIRE', key, ttl)
    else
      call('HSET', key, 't', sub(argument, 1, 28), 'v', sub(argument, 29))
    end
  end
  return string.rep('1', #KEYS)
end
for n, key in ipairs(KEYS) do
  local argument = ARGV[n + 2]
  local tag, row = sub(argument, 1, 28), sub(argument, 29)
  local known = try('HMGET', key, 't', 'x')
  local held = known[1]
  if known.err then
    if not string.find(known.err, 'WRONGTYPE', 1, true) then return known end
    outcome[n] = 'w'
  elseif held and #held ~= 28 then
    outcome[n] = 'w'
  elseif held and not (held == tag and overwrite_equal_tags) and not is_newer(tag, held) then
    outcome[n] = '0'
  else
    if known[2] or (held and row == '') then call('DEL', key) end
    if row == '' then
      call('HSET', key, 't', tag, 'x', '1')
      call('PEXPIRE', key, ttl)
    else
      call('HSET', key, 't', tag, 'v', row)
    end
    outcome[n] = '1'
  end
end
return table.concat(outcome)
"""
)

# The same for rows that have fields, sets or a time to live.
# ARGV: as above; the milliseconds that a row lives, 0 for ever; the prefix of our own fields' names; the prefixes of
# rows and sets, and of memos. Then for each row: its tag, followed by the names of its sets, a line each; how many
# arguments follow for it (none: a deletion); that many names and values of fields, alternating.
#
# The field 's' holds a row's sets, so that the row can be removed from those that a newer version isn't in. A row that
# expires would take its tag and its sets along. So these are in its memo, which lives longer, and for ever while the
# row is in a set.
#
# Writes that a full memory refuses come first: once a script has written anything, the server lets it continue. A
# deletion makes room instead.
RICH: Final = (
    _IS_NEWER
    + """
local forget, overwrite_equal_tags, lives = tonumber(ARGV[1]), ARGV[2] == '1', tonumber(ARGV[3])
local rows, memos = ARGV[5], ARGV[6]
local T, X, S = ARGV[4] .. 't', ARGV[4] .. 'x', ARGV[4] .. 's'
local remember = math.max(forget, lives)

local function is_foreign(reply)
  return type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true)
end

local function leave(names, but, key)
  for name in string.gmatch(names, '[^\\n]+') do
    if not but[name] then
      local done = try('SREM', rows .. name, key)
      if type(done) == 'table' and done.err and not is_foreign(done) then return done end
    end
  end
end

local function enter(names, held, key)
  local entered = {}
  for name in string.gmatch(names, '[^\\n]+') do
    local done = try('SADD', rows .. name, key)
    if type(done) == 'table' and done.err then
      leave(table.concat(entered, '\\n'), held, key)
      return nil, done
    end
    entered[#entered + 1] = name
  end
  return entered
end

local function names_in(names)
  local found = {}
  for name in string.gmatch(names, '[^\\n]+') do found[name] = true end
  return found
end

local outcome, at = {}, 7
for n, key in ipairs(KEYS) do
  local tag, sets, count = sub(ARGV[at], 1, 28), sub(ARGV[at], 29), tonumber(ARGV[at + 1])
  local first, last = at + 2, at + 1 + count
  at = last + 1
  local memo = key
  if lives > 0 then memo = memos .. sub(key, #rows + 1) end
  local known = try('HMGET', memo, T, S)
  if not known.err and memo ~= key then
    local row = try('HEXISTS', key, T)
    if type(row) == 'table' then known = row end
  end
  local held = known[1]
  if known.err then
    if not is_foreign(known) then return known end
    outcome[n] = 'w'
  elseif held and #held ~= 28 then
    outcome[n] = 'w'
  elseif held and not (held == tag and overwrite_equal_tags) and not is_newer(tag, held) then
    outcome[n] = '0'
  else
    local before = known[2] or ''
    local entered, failed = enter(sets, names_in(before), key)
    if failed and not is_foreign(failed) then return failed end
    if failed then
      outcome[n] = 'w'
    else
      if before ~= '' then
        if count > 0 and sets == '' then call('HSET', memo, T, held) end
        failed = leave(before, names_in(sets), key)
        if failed then return failed end
      end
      if count == 0 then
        if held then call('DEL', memo) end
        call('HSET', memo, T, tag, X, '1')
        call('PEXPIRE', memo, forget)
        if memo ~= key then call('DEL', key) end
      else
        if held or memo ~= key then
          call('HSET', key, T, tag)
          call('DEL', key)
        end
        call('HSET', key, T, tag, unpack(ARGV, first, last))
        if memo ~= key then
          call('PEXPIRE', key, lives)
          call('DEL', memo)
          call('HSET', memo, T, tag)
        end
        if sets ~= '' then
          call('HSET', memo, S, sets)
        elseif memo ~= key then
          call('PEXPIRE', memo, remember)
        end
      end
      outcome[n] = '1'
    end
  end
end
return table.concat(outcome)
"""
)

# Before either of them, for a view's rows.
# ARGV: as above; last the key of the writer's fence, and the fence of the writer of these rows.
# A row that leaves a view leaves nothing that keeps an older version out. The job that takes over looks through the
# rows, and doesn't delete those that arrive later. So no other write may come in once it has begun.
_GUARD: Final = f"""
if (redis.call('GET', ARGV[#ARGV - 1]) or '0') ~= ARGV[#ARGV] then return '{FENCED.decode()}' end
"""

# KEYS: the key of the writer's fence. ARGV: the milliseconds since 1970.
# Returns a fence that is greater than all before. A server that was put back has forgotten some fences. The clock has
# gone on, so it exceeds those too.
CLAIM: Final = """
local fence, known = tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or '0')
if known >= fence then fence = known + 1 end
redis.call('SET', KEYS[1], string.format('%.0f', fence))
return fence
"""

# KEYS: the key of the writer's fence; the coordination records. ARGV: the fence of the record's writer, name and text.
SAVE_RECORD: Final = f"""
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return '{FENCED.decode()}' end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
"""

# KEYS: the key of the newest epoch. ARGV: an epoch.
KEEP_EPOCH: Final = """
local known = redis.call('GET', KEYS[1])
if not known or tonumber(known, 16) < tonumber(ARGV[1], 16) then redis.call('SET', KEYS[1], ARGV[1]) end
"""


def script_for(
    layout: TableLayout, *, tombstone_ttl_s: int, overwrite_equal_tags: bool, rows: str, memos: str
) -> tuple[str, tuple[Argument, ...]]:
    """The script for a table's rows, and the arguments that all rows share. ``rows`` and ``memos`` are key prefixes."""
    plain: tuple[Argument, ...] = (tombstone_ttl_s * 1000, "1" if overwrite_equal_tags else "0")
    if layout.is_plain:
        return PLAIN, plain
    return RICH, (*plain, layout.ttl_s * 1000, layout.mark, rows, memos)


def guarded(script: str) -> str:
    """The same script for one writer's rows. Its last two arguments are the fence's key and that writer's fence."""
    return _GUARD + script


def arguments_for(layout: TableLayout) -> Callable[[str, bytes | None], Sequence[Argument]]:
    """A function that makes a row's own arguments of its tag and JSON; None is a deletion."""
    if layout.is_plain:
        return lambda tag, text: (tag.encode() if text is None else tag.encode() + text,)

    def arguments(tag: str, text: bytes | None) -> list[Argument]:
        if text is None:
            return [tag, 0]
        if not (layout.has_fields or layout.sets):
            return [tag, 2, "v", text]
        row = parse_object(text)
        sets = [name for template in layout.sets if (name := template.text(row)) is not None]
        fields = fields_of(row) if layout.has_fields else ["v", text]
        return [tag + "\n".join(sets), len(fields), *fields]

    return arguments
