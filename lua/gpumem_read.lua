-- gpumem_read.lua: read a job's data: the record in its comment, the #GPUMEM lines and sruns of its
-- script, and the resources it asks for. Loaded by gpumem.lua, whose rules apply here too: only plain
-- finds and patterns anchored with ^, and run time linear in the text.

local M = {}

local MAX_SCRIPT_LINES = 200
local MAX_COMMENT_BYTES, MAX_DIRECTIVE_BYTES, MAX_REQUEST_BYTES, MAX_WORDS = 8192, 4096, 1024, 1000
local MAX_MIB = 2 ^ 31
local RECORD = "gpumem/1:"
local MIB = { k = 1 / 1024, m = 1, g = 1024, t = 1024 * 1024 }

local find, sub, match, lower = string.find, string.sub, string.match, string.lower

--- Text for people and logs: one line of limited length, without control characters.
function M.clean(text)
  return (sub(tostring(text), 1, 400):gsub("%c", "?"))
end

--- Whether the user gave a number: fields that Slurm left unset are nil, NO_VAL or INFINITE.
function M.given(number, no_val)
  return type(number) == "number" and number < no_val
end

--- MiB of "12G", "1.5g", "512M" or "12GiB", rounded up; nil if it is not a size. A bare number is none:
-- people mean GiB as often as MiB (parse_mib in units.py has the same rule).
function M.parse_mib(text)
  local digits, unit = match(text, "^([0-9]+)([kmgtKMGT])[iI]?[bB]?$")
  if not digits then
    digits, unit = match(text, "^([0-9]+%.[0-9]+)([kmgtKMGT])[iI]?[bB]?$")
  end
  if not digits or #digits > 12 then
    return nil
  end
  local mib = math.ceil(tonumber(digits) * MIB[lower(unit)])
  return mib > 0 and mib < MAX_MIB and mib or nil
end

--- The fields of the last record in a job's comment, or nil.
function M.find_record(comment)
  if type(comment) ~= "string" then
    return nil
  end
  comment = sub(comment, -MAX_COMMENT_BYTES)
  local found, start = nil, 1
  while true do
    local first, last = find(comment, RECORD, start, true)
    if not first then
      return found
    end
    local _, stop = find(comment, "^%S*", last + 1)
    if first == 1 or find(comment, "^%s", first - 1) then
      found = M.parse_record(sub(comment, last + 1, stop)) or found
    end
    start = stop + 1
  end
end

--- The fields of "est=12045,req=13312,by=structural"; nil unless it consists only of such pairs.
function M.parse_record(text)
  local fields, at = {}, 1
  while at <= #text do
    local _, stop, key, value = find(text, "^([a-z-]+)=([%w._+-]+),?", at)
    if not stop then
      return nil
    end
    fields[key], at = value, stop + 1
  end
  return fields
end

-- Shell-like words of a line (quotes, backslash, # comment); nil if a quote is not closed.
local function words(line, at)
  local out, parts = {}, nil
  while at <= #line do
    local _, stop = find(line, "^%s+", at)
    if stop then
      if parts then
        out[#out + 1], parts = table.concat(parts), nil
      end
    else
      parts = parts or {}
      local quote = match(line, "^['\"#]", at)
      if quote == "#" then
        break
      end
      if quote then
        stop = find(line, quote, at + 1, true)
        if not stop then
          return nil
        end
        parts[#parts + 1] = sub(line, at + 1, stop - 1)
      elseif sub(line, at, at) == "\\" then
        stop = at + 1
        parts[#parts + 1] = sub(line, stop, stop)
      else
        _, stop = find(line, "^[^%s'\"\\#]+", at)
        parts[#parts + 1] = sub(line, at, stop)
      end
    end
    at = stop + 1
  end
  if parts then
    out[#out + 1] = table.concat(parts)
  end
  return out
end

-- The line that starts at `at`, without its line end, and where the next one starts.
local function next_line(text, at)
  local stop = find(text, "\n", at, true) or #text + 1
  local line = sub(text, at, stop - 1)
  if sub(line, -1) == "\r" then
    line = sub(line, 1, -2)
  end
  return line, stop + 1
end

--- Keys of the #GPUMEM lines in the head of a script; nil if there are none.
function M.find_directives(script)
  if not find(script, "#GPUMEM", 1, true) then
    return nil
  end
  local found, at, count, bytes = nil, 1, 0, 0
  while at <= #script and count < MAX_SCRIPT_LINES do
    local line
    line, at = next_line(script, at)
    count = count + 1
    local _, blanks = find(line, "^%s*")
    if blanks < #line and sub(line, blanks + 1, blanks + 1) ~= "#" then
      break
    end
    if find(line, "^#GPUMEM%s") and bytes + #line <= MAX_DIRECTIVE_BYTES then
      found, bytes = found or {}, bytes + #line
      for _, word in ipairs(words(line, 8) or {}) do
        local key, value = match(word, "^([%w-]+)=(.*)$")
        if key then
          found[key] = value
        elseif word == "trace" then
          found.trace = "yes"
        end
      end
    end
  end
  return found
end

--- The first comment of the head that was meant as a #GPUMEM line ("# GPUMEM mem=12G", "#gpumem mem=12G"): its
-- number and how to write it; nil if there is none. slurm/submit/script.py has the same rule: "##GPUMEM" is
-- a line that somebody switched off.
function M.find_slip(script)
  local at, count = 1, 0
  if not find(lower(script), "mem", 1, true) then
    return nil
  end
  while at <= #script and count < MAX_SCRIPT_LINES do
    local line
    line, at = next_line(script, at)
    count = count + 1
    local _, blanks = find(line, "^%s*")
    if blanks < #line and sub(line, blanks + 1, blanks + 1) ~= "#" then
      return nil
    end
    local rest = not find(line, "^#GPUMEM%s")
      and match(sub(line, 1, MAX_DIRECTIVE_BYTES), "^%s*#[ \t]*[gG][pP][uU][-_]?[mM][eE][mM][ \t]*:?[ \t]*([%a-]+=.*)$")
    if rest then
      return count, "#GPUMEM " .. rest
    end
  end
  return nil
end

local GPU_OPTIONS = {
  "^%-G", "^%-%-gres", "^%-%-gpu", "^%-%-cpus%-per%-gpu", "^%-%-mem%-per%-gpu",
  "^%-%-ntasks%-per%-gpu", "^%-%-tres%-per",
}

local function is_gpu_option(word)
  if word == "--gres=none" then
    return false
  end
  for _, pattern in ipairs(GPU_OPTIONS) do
    if find(word, pattern) then
      return true
    end
  end
  return false
end

-- Whether an srun on this (joined) line names GPUs among its own options. One pass: after srun,
-- words are options or an option's value until the first word that is neither: the program.
-- `budget.words` bounds the work over all lines of a script.
local function srun_line_names_gpus(line, budget)
  local in_options, after_option, at = false, false, 1
  while at <= #line do
    local _, blank = find(line, "^[%s;&|()'\"`]*", at)
    if find(sub(line, at, blank), "^[^;&|]*[;&|]") then
      in_options = false
    end
    local _, stop = find(line, "^[^%s;&|()'\"`]+", blank + 1)
    if not stop then
      return false
    end
    local word = sub(line, blank + 1, stop)
    budget.words = budget.words - 1
    if budget.words < 0 then
      return true -- too long to be sure: do not change the job
    elseif word == "srun" or sub(word, -5) == "/srun" or sub(word, -5) == "=srun" then
      in_options, after_option = true, false
    elseif in_options and sub(word, 1, 1) == "-" then
      if is_gpu_option(word) then
        return true
      end
      after_option = not find(word, "=", 1, true)
    elseif in_options and after_option then
      after_option = false
    else
      in_options = false
    end
    at = stop + 1
  end
  return false
end

--- The number of the first line with an srun that names GPUs, in the part of the script that is read, or nil.
-- Such a step would request a GPU that the rewritten job no longer has, and fail.
function M.find_gpu_srun(script)
  local at, count, joined, first, budget = 1, 0, nil, nil, { words = MAX_WORDS }
  if not find(script, "srun", 1, true) then
    return nil
  end
  while at <= #script and count < MAX_SCRIPT_LINES do
    local line
    line, at = next_line(script, at)
    count = count + 1
    local continued = sub(line, -1) == "\\"
    if joined or not find(line, "^%s*#") then
      joined, first = joined or {}, first or count
      joined[#joined + 1] = continued and sub(line, 1, -2) or line
    end
    if joined and not (continued and at <= #script and count < MAX_SCRIPT_LINES) then
      local whole = table.concat(joined, " ")
      local srun = find(whole, "srun", 1, true)
      -- The plain finds make long lines without a GPU option cheap.
      if srun and (find(whole, "-G", srun, true) or find(whole, "--g", srun, true)
          or find(whole, "-per-", srun, true)) and srun_line_names_gpus(whole, budget) then
        return first
      end
      joined, first = nil, nil
    end
  end
  return nil
end

local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

local function parse_item(field, raw)
  local item = { field = field, raw = raw }
  local separator, name, rest = match(raw, "^gres([:/])([%w_]+)(.*)$")
  if not separator then
    return item
  end
  item.separator, item.name = separator, name
  if rest == "" then
    item.count = 1
  else
    local kind, count = match(rest, "^:([%w_.-]+)[:=](%d+)$")
    count = count or match(rest, "^[:=](%d+)$")
    if not count then
      kind, count = match(rest, "^:([%w_.-]+)$"), 1
    end
    if count == 1 and not kind then
      item.name = nil -- not understood: kept, and the job is not changed
      item.odd = true
    end
    item.kind, item.count = kind, tonumber(count)
  end
  return item
end

--- The job's resource requests, as an ordered list of items: field, raw, separator, name, kind, count.
function M.parse_request(job)
  local items = {}
  for _, field in ipairs(FIELDS) do
    local text = job[field]
    if type(text) == "string" and text ~= "" then
      if #text > MAX_REQUEST_BYTES then
        return nil
      end
      local at = 1
      while at <= #text do
        local stop = find(text, ",", at, true) or #text + 1
        items[#items + 1] = parse_item(field, sub(text, at, stop - 1))
        at = stop + 1
      end
    end
  end
  return items
end

return M
