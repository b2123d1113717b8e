-- gpumem.lua: turn a job that asked for part of a GPU into a request for shards (or mps).
--
-- A site's job_submit.lua loads this file once and calls `job_submit` for each job; see
-- job_submit.lua in this directory. The site is described by the table in gpumem_site.lua, which
-- `gpumem setup` writes; its `mode` is in gpumem.toml. Both are read when this file is loaded, never when
-- a job is submitted.
--
-- slurmctld holds locks while this runs. Therefore no file, process or module is opened at submit
-- time, at most 64 KiB and 200 lines of a script are read, only plain finds and patterns
-- anchored with ^ are used, and no function raises an error. Runs on Lua 5.1 to 5.4.

local M = {}

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "./"

local function load(name, ...)
  return assert(loadfile(here .. name))(...)
end

local read = load("gpumem_read.lua")
local requests = load("gpumem_request.lua", read)
local hardware = load("gpumem_gpus.lua")

local MAX_SCRIPT_BYTES, MAX_COMMENT_BYTES = 65536, 1024
local RECORD = "gpumem/1:"
local NO_VAL = 4294967294 -- slurm.h: the user gave no number

local sub, match, format, lower = string.sub, string.match, string.format, string.lower
local clean, given = read.clean, read.given

-- Deciding -----------------------------------------------------------------------------------

-- MiB of GPU memory that the job asks to share; nil if it does not ask, and the error if its request is wrong.
local function wish(mode, record, directives, request)
  if record then
    local mib = match(record.req or "", "^%d+$") and #record.req <= 9 and tonumber(record.req) or 0
    local shares = match(record.shards or "", "^%d+$") and tonumber(record.shards)
    -- A record without shards next to a whole GPU is only an estimate for later comparison.
    local only_estimate = request.whole and not request.shared and not shares and mode ~= "on"
    return mib > 0 and shares ~= 0 and not only_estimate and mib or nil
  elseif directives and directives.mem then
    local mib = read.parse_mib(directives.mem)
    local text = sub(directives.mem, 1, 40)
    local bare = #text <= 12 and match(text, "^[0-9.]+$") and tonumber(text)
    local hint = bare and bare > 0 and " has no unit; did you mean " .. text .. (bare >= 512 and "M?" or "G?")
    return mib, not mib and clean("#GPUMEM mem=" .. text .. (hint or " is not a size like 12G"))
  end
  return nil
end

local function left(reason)
  return { message = "gpumem: job not changed: " .. reason }
end

-- A hint for a job that we do not change, or nil.
local function hint(site, record, directives, request, gpus)
  local shared, largest = request.shared, 0
  if record then
    return nil
  elseif directives and directives.model and not directives["memory-line"] then
    return { message = "gpumem: job not changed: sbatch estimates nothing here (no cli_filter), so #GPUMEM model="
      .. clean(sub(directives.model, 1, 80)) .. " has no effect; submit it with gpusbatch, or write #GPUMEM mem=12G" }
  elseif directives and directives.trace and lower(directives.trace) ~= "no" then
    return { message = "gpumem: sbatch traces nothing, so #GPUMEM trace has no effect;"
      .. " submit this script with gpusbatch" }
  end
  for _, gpu in ipairs(gpus) do
    largest = math.max(largest, gpu.shares)
  end
  if shared and largest > 0 and shared.count > largest then
    return { message = format("gpumem: %s will wait forever: one GPU here has %d %ss",
      clean(requests.as_option(shared)), largest, site.gres) }
  end
  return nil
end

-- The plan for a job that asks to share `mib` of one of `gpus`, or gets `asked.instance` instead.
local function share(job, site, asked, mib, gpus)
  local request, shared = asked.request, asked.request.shared
  local gpu, count, needed, differ
  if asked.instance then
    gpu, count, needed = asked.instance, 0, 0
  else
    gpu, count, needed, differ = hardware.measure(site, gpus, mib, shared)
  end
  local by_memory = count
  if not asked.record and not asked.instance and type(site.unknown_share) == "number" then
    -- gpusbatch does the same for memory by hand: it is no way around the site's limit on slowdowns.
    count = math.max(count, math.min(math.ceil(site.unknown_share * gpu.shares), gpu.shares))
  end
  if shared and shared.count > count and not asked.script and given(job.argc, NO_VAL) and job.argc > 0 then
    return left(format("%s will wait forever: one GPU here has %d %ss",
      clean(requests.as_option(shared)), count, site.gres)) -- srun would request its own number again
  end
  local kind = request.kind
  if site.gres == "mps" and differ then
    kind = kind or gpu.type -- a fraction of a GPU is an amount of memory only if the GPU is known
  end
  local word = asked.instance and "gpu:" .. gpu.type .. ":1"
    or site.gres .. (kind and ":" .. kind or "") .. format(":%d", count)
  local plan = {
    changes = requests.rewritten(job, asked.items, request, "gres" .. request.separator .. word),
    numbers = asked.instance and {} or requests.host_share(job, site, gpu, count),
    environment = {},
  }
  if #plan.changes == 0 then
    return next(plan.numbers) and plan or nil
  end
  local came = request.whole or shared
  local was = came and clean(requests.as_option(came)) or "none"
  local function add(field, text)
    local old = job[field]
    local new = type(old) == "string" and old ~= "" and old .. " " .. text or text
    if #new <= MAX_COMMENT_BYTES then -- Slurm rejects a job with a longer one
      plan.changes[#plan.changes + 1] = { field = field, old = old, new = new }
    end
  end
  add("admin_comment", RECORD .. "was=" .. was)
  if not asked.record then
    -- --no-requeue (0) overrides the script; a site's JobRequeue=0 is not visible here.
    local wanted = asked.directives["on-oom"] == "requeue" and job.requeue ~= 0
    local oom = wanted and ",oom=requeue" or ""
    add("comment", RECORD .. format("req=%d,by=mem,shards=%d%s", mib, count, oom))
  end
  if request.whole and asked.script then
    plan.environment = { SLURM_GPUS_PER_NODE = "", SLURM_GPUS = "", SLURM_GPUS_PER_TASK = "" }
    for _, change in ipairs(plan.changes) do
      if change.field == "tres_per_task" then -- from 23.11 on, with the tasks' other requests
        plan.environment.SLURM_TRES_PER_TASK = change.new
      end
    end
  end
  plan.message = format("gpumem: %s became --gres=%s (%s %d%s)%s%s",
    came and was or "no GPU option", word, asked.instance and "a MIG instance of" or "one GPU has",
    asked.instance and gpu.memory_mib or gpu.shares, asked.instance and " MiB" or "",
    count > by_memory and format("; how busy it keeps a GPU is not known (memory alone: %d)", by_memory) or "",
    needed > count and format("; it needs %d and may run out of GPU memory", needed) or "")
  return plan
end

--- What to do with a job: nil (nothing), or a plan: `message` for the user, `changes` of text
-- fields, `numbers` to set, `environment` variables to replace if set. Changes nothing itself.
function M.plan(job, partitions, site)
  local script = job.script
  local asked = { record = read.find_record(job.comment), items = read.parse_request(job) }
  asked.script = type(script) == "string" and sub(script, 1, MAX_SCRIPT_BYTES) or nil
  asked.directives = asked.script and read.find_directives(asked.script)
  if not asked.items then
    return nil
  end
  local request = requests.sort(asked.items, site)
  asked.request = request
  local mib, wrong = wish(hardware.mode_for(job, partitions, site), asked.record, asked.directives, request)
  if wrong then
    return left(wrong)
  elseif not mib and not request.shared and not asked.directives then
    return nil
  end
  local gpus, known, names = hardware.reachable(job, partitions, site, request.kind)
  if not mib then
    return hint(site, asked.record, asked.directives, request, gpus)
  end
  local reason = requests.reason_to_leave(job, request, asked.script, asked.directives)
  local instances = false
  if not reason and not request.kind and not request.shared and not asked.record then
    local granted = math.huge
    if gpus[1] then
      local gpu, count, needed = hardware.measure(site, gpus, mib)
      granted = needed > count and granted or count * gpu.memory_mib / gpu.shares
    end
    asked.instance, instances = hardware.smallest_instance(names, site, mib, granted)
  end
  if not reason and not gpus[1] and not asked.instance and instances then
    reason = clean(format("no MIG instance of partition %s holds its GPU memory", names))
  elseif not reason and not gpus[1] and not asked.instance then
    reason = clean("partition " .. names .. (known and " has no shared GPU" or " is not in gpumem_site.lua")
      .. (known and request.kind and " of type " .. request.kind or ""))
  end
  if reason then
    return left(reason)
  end
  return share(job, site, asked, mib, gpus)
end

-- Applying -----------------------------------------------------------------------------------

local function set(job, field, value)
  job[field] = value
end

--- Apply a plan; if Slurm refuses a change, the earlier ones are undone.
function M.apply(job, plan, log)
  for index, change in ipairs(plan.changes or {}) do
    local done, why = pcall(set, job, change.field, change.new)
    if not done then
      for back = index - 1, 1, -1 do
        pcall(set, job, plan.changes[back].field, plan.changes[back].old or "")
      end
      return nil, why
    end
  end
  for field, number in pairs(plan.numbers or {}) do
    local done, why = pcall(set, job, field, number)
    if not done then
      log("gpumem: " .. field .. ": " .. clean(why))
    end
  end
  for name, value in pairs(plan.environment or {}) do
    pcall(function()
      if job.environment[name] then
        job.environment[name] = value
      end
    end)
  end
  return true
end

--- Called for each job. Never raises an error and returns nothing: no job is rejected.
function M.job_submit(job, partitions)
  local slurm, site = slurm, M.site
  if not site then
    return
  end
  local fine, why = pcall(function()
    local plan, observes = M.plan(job, partitions, site), hardware.mode_for(job, partitions, site) == "observe"
    local script = type(job.script) == "string" and not read.find_record(job.comment) and job.script
    local head = script and sub(script, 1, MAX_SCRIPT_BYTES) or ""
    local number, line = read.find_slip(head)
    if number and not observes then
      slurm.log_user("%s", format("gpumem: line %d of the script is ignored; write it like this: %s", number, clean(line)))
    end
    local directives = read.find_directives(head) or {}
    if directives["memory-line"] and not observes then
      slurm.log_user("%s", "gpumem: #GPUMEM memory-line= is ignored; write #GPUMEM model=summary.txt (with gpusbatch)"
        .. " or #GPUMEM mem=12G instead")
    end
    local slot = directives.slot
    if slot and lower(slot) ~= "off" and not observes then
      slurm.log_user("%s", clean("gpumem: sbatch gives no time slots, so #GPUMEM slot=" .. sub(slot, 1, 40)
        .. " has no effect; submit this script with gpusbatch"))
    end
    if not plan then
      return
    elseif observes then
      slurm.log_info("%s", "gpumem: observe mode, not done: " .. (plan.message or "host memory and CPUs would be set"))
      return
    end
    local log = function(text) slurm.log_info("%s", text) end
    local done, refused = M.apply(job, plan, log)
    if not done then
      slurm.log_error("%s", "gpumem: job not changed: " .. clean(refused))
    elseif plan.message then
      slurm.log_user("%s", plan.message)
    end
  end)
  if not fine then
    pcall(slurm.log_error, "%s", "gpumem: job not changed: " .. clean(why))
  end
end

--- `slurm_job_submit` for a site whose own rules run first: they see the request as the user wrote it.
-- Their answer is the answer; a job that they refuse is not changed.
function M.after(rules)
  assert(type(rules) == "function", "job_submit.lua defines no slurm_job_submit")
  return function(job, partitions, ...)
    local answer, more = rules(job, partitions, ...)
    if answer == nil or answer == slurm.SUCCESS then -- Slurm takes no answer for a yes
      M.job_submit(job, partitions)
    end
    return answer, more
  end
end

--- The same for a site whose own rules are to see the request as we changed it.
function M.before(rules)
  assert(type(rules) == "function", "job_submit.lua defines no slurm_job_submit")
  return function(job, partitions, ...)
    M.job_submit(job, partitions)
    return rules(job, partitions, ...)
  end
end

M.site, M.site_error = hardware.load_site(here .. "gpumem_site.lua", here .. "gpumem.toml")
if not M.site and type(slurm) == "table" and slurm.log_error then
  slurm.log_error("%s", "gpumem: " .. clean(M.site_error) .. "; jobs are not changed")
end

return M
