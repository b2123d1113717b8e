-- gpumem_line.lua: the memory line of a script: its GPU memory as a function of the batch size.
-- Loaded by gpumem.lua, whose rules apply here too. slurm_gpumem/estimators/memory_line.py does the same
-- in Python and describes the format; a test checks that both give the same answers.

local M = {}

local MAX_BYTES, MAX_KNOTS, MAX_BATCH, MAX_MIB = 2000, 200, 1048576, 1073741824
-- Contexts for a site table without any: those of an H200, which models/gpus.toml assumes too.
local CONTEXT = { bare = 620, conv = 634, matmul = 742, both = 764, none = 0 }
local PLACE = { bare = 1, conv = 2, matmul = 3, both = 4 }
local LARGE_WORKSPACE_MIB = 20

local find, sub, match, format, lower, floor =
  string.find, string.sub, string.match, string.format, string.lower, math.floor

-- A number with a limited number of digits, so that a double holds any product of two exactly.
local function number(text, most, digits)
  local value = text and #text - (sub(text, 1, 1) == "-" and 1 or 0) <= (digits or 10) and tonumber(text)
  return value and value <= most and value >= -most and value or nil
end

--- The batch size in a user's text, or nil.
function M.batch(text)
  local value = type(text) == "string" and #text <= 7 and match(text, "^%d+$") and tonumber(text)
  return value and value >= 1 and value <= MAX_BATCH and value or nil
end

-- The text up to the next slash, and where the following field starts.
local function field(text, at)
  if at > #text + 1 then
    return nil, at
  end
  local stop = find(text, "/", at, true) or #text + 1
  return sub(text, at, stop - 1), stop + 1
end

local function parse_knots(text)
  local knots, at = {}, 1
  while at <= #text + 1 do
    local stop = find(text, ":", at, true) or #text + 1
    local batch, peak, request = match(sub(text, at, stop - 1), "^(%d+),(%-?%d+),(%-?%d+)$")
    batch, peak, request = M.batch(batch), number(peak, MAX_MIB), number(request, MAX_MIB)
    local before = knots[#knots]
    if not batch or not peak or not request or (before and batch <= before[1]) or #knots >= MAX_KNOTS then
      return nil
    end
    knots[#knots + 1] = { batch, peak, request }
    at = stop + 1
  end
  return knots
end

--- The parsed value of memory-line=, or nil and what is wrong with it.
function M.parse(text)
  if #text > MAX_BYTES then
    return nil, "it is too long"
  end
  local line, at, version, context, knots, small, batch = {}, 1, nil, nil, nil, nil, nil
  version, at = field(text, at)
  line.fingerprint, at = field(text, at)
  line.by, at = field(text, at)
  line.job, at = field(text, at)
  context, at = field(text, at)
  batch, at = field(text, at)
  knots, at = field(text, at)
  small, at = field(text, at)
  if version ~= "1" then
    return nil, "its version is not 1"
  elseif not knots or at <= #text + 1 then
    return nil, "it is cut off or has too many parts"
  elseif not match(line.fingerprint, "^[0-9a-f]+$") or #line.fingerprint < 4 or #line.fingerprint > 64
      or not match(line.by, "^[%w._+-]+$") or #line.by > 40
      or not match(line.job, "^[%w._+-]+$") or #line.job > 40 then
    return nil, "its model, estimator or job is not a plain word"
  end
  local kind, of_peak, of_request, rest = match(context, "^([a-z]+)%.(%d+)%.(%d+)(.*)$")
  local unmeasured = rest and match(rest, "^%.(%d+)$")
  line.unmeasured = number(unmeasured, 999, 3)
  line.context = kind
  line.of_peak, line.of_request = number(of_peak, 999, 3), number(of_request, 999, 3)
  local rarer
  line.optimizer, line.precision, rarer = match(line.job, "^([%w_+-]+)%.([%w_+-]+)(.*)$")
  line.more = rarer and match(rarer, "^%.([%w_+-]+)$")
  line.batch, line.knots = M.batch(batch), parse_knots(knots)
  if not kind or not CONTEXT[kind] or not line.of_peak or not line.of_request
      or (rest ~= "" and not line.unmeasured) then
    return nil, "its context is not known"
  elseif not line.batch or not line.knots or not line.optimizer then
    return nil, "its numbers are not batch,peak,request"
  end
  if small then
    local peak, request = match(small, "^(%-?%d+),(%-?%d+)$")
    line.shift_peak, line.shift_request = number(peak, MAX_MIB), number(request, MAX_MIB)
    line.small = not peak and parse_knots(small) or nil
    if not (line.small or (line.shift_peak and line.shift_request)) then
      return nil, "its numbers are not batch,peak,request"
    end
  end
  return line
end

-- Peak and request between the knots, rounded up; below the first knot its values, and beyond the last
-- on the line through the middle knot and the last.
local function interpolate(knots, batch)
  if batch <= knots[1][1] or not knots[2] then
    return knots[1][2], knots[1][3]
  end
  local at = 2
  while at < #knots and knots[at][1] < batch do
    at = at + 1
  end
  local left, right = knots[at - 1], knots[at]
  if batch > right[1] then
    left = knots[floor((#knots - 1) / 2) + 1]
  end
  local part, whole = batch - left[1], right[1] - left[1]
  return left[2] - floor((left[2] - right[2]) * part / whole), left[3] - floor((left[3] - right[3]) * part / whole)
end

-- The context and its margin, as in the table.
local function context_of(line, gpu)
  local known = type(gpu.context) == "table" and gpu.context[PLACE[line.context]]
  local context = type(known) == "number" and line.context ~= "none" and known or CONTEXT[line.context]
  local margin = type(gpu.context_margin_mib) == "number" and gpu.context_margin_mib or 0
  return context, margin
end

local function on_workspace(line, batch, large)
  local peak, request = interpolate(not large and line.small or line.knots, batch)
  if not large and not line.small then
    peak, request = peak + (line.shift_peak or 0), request + (line.shift_request or 0)
  end
  return peak, request
end

-- What a trace's request gets more where nobody measured workspaces: with convolutions, without.
local function percent_of_trace(line, gpu)
  local percent = type(gpu.traced_percent) == "table" and gpu.traced_percent or {}
  local conv = line.context == "conv" or line.context == "both"
  local found = percent[conv and 1 or 2]
  if match(line.by, "^[^+]*") ~= "trace" or type(found) ~= "number" or found <= 0 then
    return 0
  end
  return line.unmeasured or found
end

--- Peak and request in MiB for a batch size on a GPU of the site's table.
-- If the table does not have the GPU's cuBLAS workspace, the larger of the two answers.
function M.memory(line, batch, gpu)
  local workspace = type(gpu.workspace_mib) == "number" and gpu.workspace_mib or nil
  local peak, request = on_workspace(line, batch, not workspace or workspace >= LARGE_WORKSPACE_MIB)
  if not workspace then
    local other_peak, other_request = on_workspace(line, batch, false)
    peak, request = math.max(peak, other_peak), math.max(request, other_request)
  end
  local context, margin = context_of(line, gpu)
  peak = math.max(1, peak + floor(context * line.of_peak / 100))
  margin = margin + floor(peak * percent_of_trace(line, gpu) / 100)
  return peak, math.max(peak, request + floor(context * line.of_request / 100) + margin)
end

-- The batch size that applies: the environment's, the script's or the line's own; or nil and the error.
local function batch_of(job, directives, line)
  -- Only batch jobs have an environment here; reading it raises an error for others.
  local fine, given = pcall(function() return job.environment["GPUMEM_BATCH_SIZE"] end)
  local origin = "GPUMEM_BATCH_SIZE="
  if not fine or type(given) ~= "string" or given == "" then
    given, origin = directives["batch-size"], "#GPUMEM batch-size="
  end
  if not given then
    return line.batch
  end
  local batch = M.batch(given)
  return batch, not batch and origin .. sub(given, 1, 40) .. " is not a batch size" or nil
end

--- The script's memory line with the job's batch size in `at`; or nil and the error.
function M.wish(job, directives)
  local again = "; regenerate it with gpumem estimate --directive --write"
  local line, why = M.parse(directives["memory-line"])
  if not line then
    return nil, "its memory-line is damaged: " .. why .. again
  end
  for _, key in ipairs({ "optimizer", "precision" }) do
    local said = lower(sub(directives[key] or line[key], 1, 40)):gsub("_", "-")
    if said ~= line[key] then
      return nil, "its memory-line was made for " .. key .. " " .. line[key] .. ", not " .. said .. again
    end
  end
  line.at, why = batch_of(job, directives, line)
  if not line.at then
    return nil, why
  end
  return line
end

--- MiB to request: the largest answer for any of these GPUs, because the job may run on each.
function M.request(line, gpus)
  line.peak, line.request = 0, 0
  for _, gpu in ipairs(gpus) do
    local peak, request = M.memory(line, line.at, gpu)
    line.peak, line.request = math.max(line.peak, peak), math.max(line.request, request)
  end
  return line.request
end

--- The memory request as fields of the job's record.
function M.record(line, gpu)
  local kind = gpu.type and match(gpu.type, "^[%w._+-]+$")
  return format("est=%d,req=%d,by=%s,via=line%s,batch=%d,fp=%s,opt=%s,prec=%s%s", line.peak, line.request,
    line.by, kind and ",gpu=" .. kind or "", line.at, line.fingerprint, line.optimizer, line.precision,
    line.more and ",more=" .. line.more or "")
end

--- What the message to the user says about the line.
function M.told(line)
  local first, last = line.knots[1][1], line.knots[#line.knots][1]
  local far = (line.at < first or line.at > last)
    and format(" (its memory-line is for %d to %d; regenerate it)", first, last) or ""
  return format(" for batch %d%s", line.at, far)
end

return M
