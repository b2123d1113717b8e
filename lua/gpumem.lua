-- gpumem.lua: turn a job that asked for part of a GPU into a request for shards (or mps).
--
-- A site's job_submit.lua loads this file once and calls `job_submit` for each job; see
-- job_submit.lua in this directory. The site is described by the table in gpumem_site.lua, which
-- `gpumem setup` writes. It is read when this file is loaded, never when a job is submitted.
--
-- slurmctld holds locks while this runs. Therefore no file, process or module is opened at submit
-- time, at most 64 KiB and 200 lines of a script are read, only plain finds and patterns
-- anchored with ^ are used, and no function raises an error. Runs on Lua 5.1 to 5.4.

local M = { schema = 1 }

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "./"
local read = dofile(here .. "gpumem_read.lua")
-- Without this file everything except memory lines works: an incomplete upgrade must not stop the rest.
local have_lines, lines = pcall(dofile, here .. "gpumem_line.lua")

local MAX_SCRIPT_BYTES, MAX_NAMES_BYTES, MAX_COMMENT_BYTES = 65536, 1024, 1024
local RECORD = "gpumem/1:"
local NO_VAL, NO_VAL16 = 4294967294, 65534 -- slurm.h: the user gave no number

local find, sub, match, format, lower = string.find, string.sub, string.match, string.format, string.lower

-- Text for people and logs: one line of limited length, without control characters.
local function clean(text)
  return (sub(tostring(text), 1, 400):gsub("%c", "?"))
end

-- Integer division. Numbers are printed with %d everywhere: from Lua 5.3 on, 12288/1024 prints as 12.0.
local function ceil_div(amount, unit)
  return math.floor((amount + unit - 1) / unit)
end

-- Fields that Slurm left unset are nil, NO_VAL or INFINITE.
local function given(number, no_val)
  return type(number) == "number" and number < no_val
end

local OPTION = {
  tres_per_node = "--gres=", tres_per_job = "--gpus=", tres_per_task = "--gpus-per-task=",
  tres_per_socket = "--gpus-per-socket=",
}
local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

-- The item as the sbatch option it came from (or could have come from).
local function as_option(item)
  local value = match(item.raw, "^gres[:/](.*)$") or item.raw
  if item.field ~= "tres_per_node" then
    value = match(value, "^gpu[:=](.*)$") or (value == "gpu" and "1" or value)
    value = value:gsub("=", ":")
  end
  return OPTION[item.field] .. value
end

-- The GPUs in the partitions the job may run in: those of its type, or all.
local function reachable(job, partitions, site, kind)
  local names = job.partition
  if type(names) ~= "string" or names == "" then
    for name, partition in pairs(partitions or {}) do
      if partition.flag_default == 1 then
        names = name
      end
    end
  end
  names = type(names) == "string" and sub(names, 1, MAX_NAMES_BYTES) or site.default_partition or ""
  local found, at, known = {}, 1, false
  while at <= math.max(1, #names) do
    local stop = find(names, ",", at, true) or #names + 1
    local gpus = site.partitions[sub(names, at, stop - 1)] or site.partitions["*"]
    known = known or gpus ~= nil
    for _, gpu in ipairs(gpus or {}) do
      if not kind or lower(gpu.type or "") == lower(kind) then
        found[#found + 1] = gpu
      end
    end
    at = stop + 1
  end
  return found, known, names == "" and "(none)" or names
end

-- MiB that a job needs on one of these GPUs: given, or computed from its memory line.
local function needed_on(mib, gpus)
  return type(mib) == "table" and lines.request(mib, gpus) or mib
end

-- The smallest MIG instance of the job's partitions that holds `mib`, if one is smaller than `granted` MiB; and
-- whether there are instances at all.
local function smallest_instance(names, site, mib, granted)
  local best, at, seen = nil, 1, false
  while site.instances and at <= math.max(1, #names) do
    local stop = find(names, ",", at, true) or #names + 1
    for _, instance in ipairs(site.instances[sub(names, at, stop - 1)] or site.instances["*"] or {}) do
      seen = true
      local smaller = instance.memory_mib < (best and best.memory_mib or granted)
      if smaller and instance.memory_mib >= needed_on(mib, { instance }) then
        best = instance
      end
    end
    at = stop + 1
  end
  return best, seen
end

-- Number of shares of this GPU that hold `mib`.
local function shares_for(site, gpu, mib)
  if site.gres == "mps" then
    return math.max(1, ceil_div(mib * gpu.shares, gpu.memory_mib))
  end
  return ceil_div(mib, site.shard_mib)
end

-- The smallest GPU that holds it, otherwise the largest; and whether the GPUs differ in size.
local function choose_gpu(site, gpus, mib)
  local best, largest, differ = nil, gpus[1], false
  for _, gpu in ipairs(gpus) do
    if shares_for(site, gpu, mib) <= gpu.shares and (not best or gpu.memory_mib < best.memory_mib) then
      best = gpu
    end
    if gpu.memory_mib > largest.memory_mib then
      largest = gpu
    end
    differ = differ or gpu.memory_mib ~= gpus[1].memory_mib or gpu.shares ~= gpus[1].shares
  end
  return best or largest, differ
end

-- Why a job that asks for sharing keeps its original request, or nil.
local function reason_to_leave(job, request, script, directives)
  if directives and lower(directives["exclusive-gpu"] or "") == "yes" then
    return "it asks for exclusive-gpu=yes"
  elseif request.odd then
    return clean("its request " .. request.odd .. " is not understood")
  elseif job.shared == 0 then
    return "it asks for --exclusive"
  elseif given(job.het_job_offset, NO_VAL) then
    return "it is part of a heterogeneous job"
  elseif (given(job.min_nodes, NO_VAL) and job.min_nodes > 1)
      or (given(job.num_tasks, NO_VAL) and job.num_tasks > 1 and job.max_nodes ~= 1) then
    return "it may run on several nodes"
  elseif request.gpus > 1 or request.per_socket or (request.per_task and job.num_tasks ~= 1) then
    return "it asks for several GPUs"
  elseif request.whole and not script then
    return "srun and salloc steps ask again for the GPU named on their command line;"
      .. " leave the GPU option out to share one"
  elseif (job.cpus_per_tres or "") ~= "" or (job.mem_per_tres or "") ~= ""
      or given(job.ntasks_per_tres, NO_VAL16) then
    return "Slurm refuses --cpus-per-gpu, --mem-per-gpu and --ntasks-per-gpu for part of a GPU"
  end
  if type(job.tres_bind) == "string" and find(job.tres_bind, "gpu", 1, true) then
    -- SLURM_TRES_BIND cannot be unset from here, and 26.05 gives steps no device with any other value.
    return "--gpus-per-task and --gpu-bind bind its steps to a whole GPU; --gres=gpu:1 would share"
  end
  local line = request.whole and script and read.find_gpu_srun(script)
  return line and format("line %d of the script has an srun that names GPUs", line) or nil
end

-- The items by kind: whole GPUs, the site's shared gres, and what prevents a rewrite.
local function sort_request(items, site)
  local request = { gpus = 0, separator = site.separator or ":" }
  for _, item in ipairs(items) do
    request.separator = item.separator or request.separator
    if item.odd or item.name == (site.gres == "mps" and "shard" or "mps") then
      request.odd = request.odd or as_option(item)
    elseif item.name == "gpu" then
      local seen = request.whole and request.whole.field ~= item.field
      request.gpus = seen and math.max(request.gpus, item.count) or request.gpus + item.count
      request.per_task = request.per_task or item.field == "tres_per_task"
      request.per_socket = request.per_socket or item.field == "tres_per_socket"
      request.whole = request.whole or item
      request.kind = request.kind or item.kind
    elseif item.name == site.gres then
      request.odd = request.shared and as_option(item) or request.odd
      request.shared, request.kind = item, item.kind
      if item.field ~= "tres_per_node" then
        request.odd = as_option(item)
      end
    end
  end
  return request
end

-- Deciding -----------------------------------------------------------------------------------

-- MiB of GPU memory that the job asks to share, or the memory line that gives them; nil if it does not
-- ask, and the error if its request is wrong.
local function wish(job, site, record, directives, request)
  if record then
    local mib = match(record.req or "", "^%d+$") and #record.req <= 9 and tonumber(record.req) or 0
    local shares = match(record.shards or "", "^%d+$") and tonumber(record.shards)
    -- A record without shards next to a whole GPU is only an estimate for later comparison.
    local only_estimate = request.whole and not request.shared and not shares and site.mode ~= "on"
    return mib > 0 and shares ~= 0 and not only_estimate and mib or nil
  elseif directives and directives.mem then
    local mib = read.parse_mib(directives.mem)
    local text = sub(directives.mem, 1, 40)
    local bare = #text <= 12 and match(text, "^[0-9.]+$") and tonumber(text)
    local hint = bare and bare > 0 and " has no unit; did you mean " .. text .. (bare >= 512 and "M?" or "G?")
    return mib, not mib and clean("#GPUMEM mem=" .. text .. (hint or " is not a size like 12G"))
  elseif directives and directives["memory-line"] then
    if not have_lines then
      return nil, "gpumem_line.lua is missing or broken, so its memory-line is ignored"
    end
    local line, why = lines.wish(job, directives)
    return line, why and clean(why)
  end
  return nil
end

-- New values of the four tres fields with the GPU taken out and `word` put in.
local function rewritten(job, items, request, word)
  local fields, placed = {}, false
  for _, item in ipairs(items) do
    local keep = item.raw
    if item == request.shared or (item.name == "gpu" and item.field == "tres_per_node" and not request.shared) then
      keep = not placed and word or nil
      placed = true
    elseif item.name == "gpu" then
      keep = nil
    end
    local list = fields[item.field] or {}
    list[#list + 1] = keep
    fields[item.field] = list
  end
  if not placed then
    local list = fields.tres_per_node or {}
    list[#list + 1] = word
    fields.tres_per_node = list
  end
  local changes = {}
  for _, field in ipairs(FIELDS) do
    local new = fields[field] and table.concat(fields[field], ",")
    if new and new ~= job[field] then
      changes[#changes + 1] = { field = field, old = job[field], new = new }
    end
  end
  return changes
end

-- CPUs and host memory in proportion, if the job asked for none and the site's table has the figures.
local function host_share(job, site, gpu, count)
  local numbers = {}
  local asked_memory = job.min_mem_per_node or job.min_mem_per_cpu
  if gpu.host_mib and not asked_memory then
    local least = math.min(site.min_host_mib or 1, gpu.host_mib / 4)
    numbers.pn_min_memory = math.floor(math.max(1, least, gpu.host_mib * count / gpu.shares))
  end
  if gpu.cpus and not given(job.cpus_per_task, NO_VAL16) and not given(job.num_tasks, NO_VAL)
      and not (given(job.min_cpus, NO_VAL) and job.min_cpus > 1) then
    local cpus = math.min(math.floor(gpu.cpus * count / gpu.shares), site.max_cpus or gpu.cpus)
    if cpus > 1 then
      numbers.cpus_per_task, numbers.min_cpus = cpus, cpus
    end
  end
  return numbers
end

local function left(reason)
  return { message = "gpumem: job not changed: " .. reason }
end

-- A hint for a job that we do not change, or nil.
local function hint(site, record, directives, request, gpus)
  local shared, largest = request.shared, 0
  if record then
    return nil
  elseif directives and directives.model then
    return { message = "gpumem: sbatch does not read the #GPUMEM model of this script;"
      .. " submit it with gpusbatch, or add the line that gpumem estimate --directive prints" }
  elseif directives and directives.trace and lower(directives.trace) ~= "no" then
    return { message = "gpumem: sbatch traces nothing, so #GPUMEM trace has no effect;"
      .. " submit this script with gpusbatch" }
  end
  for _, gpu in ipairs(gpus) do
    largest = math.max(largest, gpu.shares)
  end
  if shared and largest > 0 and shared.count > largest then
    return { message = format("gpumem: %s will wait forever: one GPU here has %d %ss",
      clean(as_option(shared)), largest, site.gres) }
  end
  return nil
end

-- The GPU, the number of shares to request and the number needed; never fewer than the job asked for.
local function measure(site, gpus, mib, shared)
  local gpu, differ = choose_gpu(site, gpus, mib)
  local needed = math.max(shares_for(site, gpu, mib), shared and shared.count or 0)
  for _, other in ipairs(gpus) do
    if needed > gpu.shares and other.shares > gpu.shares then
      gpu = other
    end
  end
  return gpu, math.min(needed, gpu.shares), needed, differ
end

-- The plan for a job that asks to share `mib` of one of `gpus`, or gets `asked.instance` instead.
local function share(job, site, asked, mib, gpus)
  local request, shared = asked.request, asked.request.shared
  local gpu, count, needed, differ
  if asked.instance then
    gpu, count, needed = asked.instance, 0, 0
  else
    gpu, count, needed, differ = measure(site, gpus, mib, shared)
  end
  if shared and shared.count > count and not asked.script and given(job.argc, NO_VAL) and job.argc > 0 then
    return left(format("%s will wait forever: one GPU here has %d %ss",
      clean(as_option(shared)), count, site.gres)) -- srun would request its own number again
  end
  local kind = request.kind
  if site.gres == "mps" and differ then
    kind = kind or gpu.type -- a fraction of a GPU is an amount of memory only if the GPU is known
  end
  local word = asked.instance and "gpu:" .. gpu.type .. ":1"
    or site.gres .. (kind and ":" .. kind or "") .. format(":%d", count)
  local plan = {
    changes = rewritten(job, asked.items, request, "gres" .. request.separator .. word),
    numbers = asked.instance and {} or host_share(job, site, gpu, count),
    environment = {},
  }
  if #plan.changes == 0 then
    return next(plan.numbers) and plan or nil
  end
  local came = request.whole or shared
  local was = came and clean(as_option(came)) or "none"
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
    add("comment", RECORD .. (asked.line and lines.record(asked.line, gpu) or format("req=%d,by=mem", mib))
      .. format(",shards=%d%s", count, oom))
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
    asked.line and lines.told(asked.line) or "",
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
  local request = sort_request(asked.items, site)
  asked.request = request
  local mib, wrong = wish(job, site, asked.record, asked.directives, request)
  if wrong then
    return left(wrong)
  elseif not mib and not request.shared and not asked.directives then
    return nil
  end
  local gpus, known, names = reachable(job, partitions, site, request.kind)
  if not mib then
    return hint(site, asked.record, asked.directives, request, gpus)
  end
  local reason = reason_to_leave(job, request, asked.script, asked.directives)
  local instances = false
  if not reason and not request.kind and not request.shared and not asked.record then
    local granted = math.huge
    if gpus[1] then
      local gpu, count, needed = measure(site, gpus, needed_on(mib, gpus))
      granted = needed > count and granted or count * gpu.memory_mib / gpu.shares
    end
    asked.instance, instances = smallest_instance(names, site, mib, granted)
  end
  if not reason and not gpus[1] and not asked.instance and instances then
    reason = clean(format("no MIG instance of partition %s holds its GPU memory", names))
  elseif not reason and not gpus[1] and not asked.instance then
    reason = clean("partition " .. names .. (known and " has no shared GPU" or " is not in gpumem_site.lua")
      .. (known and request.kind and " of type " .. request.kind or ""))
  end
  if reason then
    return left(reason)
  elseif type(mib) == "table" then
    asked.line, mib = mib, lines.request(mib, asked.instance and { asked.instance } or gpus)
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
    local plan = M.plan(job, partitions, site)
    local script = type(job.script) == "string" and not read.find_record(job.comment) and job.script
    local number, line = read.find_slip(script and sub(script, 1, MAX_SCRIPT_BYTES) or "")
    if number and site.mode ~= "observe" then
      slurm.log_user("%s", format("gpumem: line %d of the script is ignored; write it like this: %s", number, clean(line)))
    end
    if not plan then
      return
    elseif site.mode == "observe" then
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

-- The site's table ---------------------------------------------------------------------------

--- nil if `site` is valid, otherwise what is wrong with it.
function M.check_site(site)
  if type(site) ~= "table" or site.schema ~= M.schema then
    return "is not a table with schema = " .. M.schema
  elseif site.mode ~= "observe" and site.mode ~= "opt-in" and site.mode ~= "on" then
    return 'mode is not "observe", "opt-in" or "on"'
  elseif site.gres ~= "shard" and site.gres ~= "mps" then
    return 'gres is not "shard" or "mps"'
  elseif type(site.shard_mib) ~= "number" or site.shard_mib < 1 then
    return "shard_mib is not a number of MiB"
  elseif type(site.partitions) ~= "table" then
    return "has no partitions"
  end
  for name, instances in pairs(type(site.instances) == "table" and site.instances or {}) do
    for _, instance in ipairs(type(instances) == "table" and instances or { false }) do
      if type(instance) ~= "table" or type(instance.type) ~= "string" or type(instance.memory_mib) ~= "number" then
        return "partition " .. tostring(name) .. " has an instance without type or memory_mib"
      end
    end
  end
  for name, gpus in pairs(site.partitions) do
    for _, gpu in ipairs(type(gpus) == "table" and gpus or { false }) do
      if type(gpu) ~= "table" or type(gpu.shares) ~= "number" or gpu.shares < 1
          or type(gpu.memory_mib) ~= "number" or gpu.memory_mib < 1 then
        return "partition " .. tostring(name) .. " has a GPU without shares or memory_mib"
      end
    end
  end
  return nil
end

--- The table in a file, read as data (it cannot call anything); or nil and the error.
function M.load_site(path)
  local chunk, why
  if setfenv then
    chunk, why = loadfile(path)
    if chunk then
      setfenv(chunk, {})
    end
  else
    chunk, why = loadfile(path, "t", {})
  end
  if not chunk then
    return nil, tostring(why)
  end
  local fine, site = pcall(chunk)
  why = not fine and tostring(site) or M.check_site(site)
  if why then
    return nil, path .. ": " .. why
  end
  return site
end

M.site, M.site_error = M.load_site(here .. "gpumem_site.lua")
if not M.site and type(slurm) == "table" and slurm.log_error then
  slurm.log_error("%s", "gpumem: " .. clean(M.site_error) .. "; jobs are not changed")
end

return M
