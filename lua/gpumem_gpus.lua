-- gpumem_gpus.lua: the site's GPUs: which of them a job can reach, how many shares of one hold its memory, which MIG
-- instance does; and the site's table, checked when it is read. Loaded by gpumem.lua, whose rules apply here too.

local M = { schema = 1 }

local MAX_NAMES_BYTES, MAX_TOML_BYTES = 1024, 262144

local find, sub, match, lower = string.find, string.sub, string.match, string.lower

-- Integer division. Numbers are printed with %d everywhere: from Lua 5.3 on, 12288/1024 prints as 12.0.
local function ceil_div(amount, unit)
  return math.floor((amount + unit - 1) / unit)
end

-- From the most careful on: of several partitions the first counts.
local MODES = { observe = 1, ["opt-in"] = 2, known = 3, on = 4 }
local ORDER = { "observe", "opt-in", "known", "on" }

-- The partitions the job may run in, as one text.
local function names_of(job, partitions, site)
  local names = job.partition
  if type(names) ~= "string" or names == "" then
    for name, partition in pairs(partitions or {}) do
      if partition.flag_default == 1 then
        names = name
      end
    end
  end
  return type(names) == "string" and sub(names, 1, MAX_NAMES_BYTES) or site.default_partition or ""
end

--- The mode for this job: that of its partitions, the most careful of several.
function M.mode_for(job, partitions, site)
  if not next(site.modes or {}) then
    return site.mode
  end
  local names, at, least = names_of(job, partitions, site), 1, #ORDER
  while at <= math.max(1, #names) do
    local stop = find(names, ",", at, true) or #names + 1
    least = math.min(least, MODES[site.modes[sub(names, at, stop - 1)] or site.mode])
    at = stop + 1
  end
  return ORDER[least]
end

-- The GPUs in the partitions the job may run in: those of its type, or all.
function M.reachable(job, partitions, site, kind)
  local names = names_of(job, partitions, site)
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

-- The smallest MIG instance of the job's partitions that holds `mib`, if one is smaller than `granted` MiB; and
-- whether there are instances at all.
function M.smallest_instance(names, site, mib, granted)
  local best, at, seen = nil, 1, false
  while site.instances and at <= math.max(1, #names) do
    local stop = find(names, ",", at, true) or #names + 1
    for _, instance in ipairs(site.instances[sub(names, at, stop - 1)] or site.instances["*"] or {}) do
      seen = true
      local smaller = instance.memory_mib < (best and best.memory_mib or granted)
      if smaller and instance.memory_mib >= mib then
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

-- The GPU, the number of shares to request and the number needed; never fewer than the job asked for.
function M.measure(site, gpus, mib, shared)
  local gpu, differ = choose_gpu(site, gpus, mib)
  local needed = math.max(shares_for(site, gpu, mib), shared and shared.count or 0)
  for _, other in ipairs(gpus) do
    if needed > gpu.shares and other.shares > gpu.shares then
      gpu = other
    end
  end
  return gpu, math.min(needed, gpu.shares), needed, differ
end

--- nil if `site` is valid, otherwise what is wrong with it.
function M.check_site(site)
  if type(site) ~= "table" or site.schema ~= M.schema then
    return "is not a table with schema = " .. M.schema
  elseif not MODES[site.mode] then
    return 'mode is not "observe", "opt-in", "known" or "on" (gpumem.toml)'
  elseif site.gres ~= "shard" and site.gres ~= "mps" then
    return 'gres is not "shard" or "mps"'
  elseif type(site.shard_mib) ~= "number" or site.shard_mib < 1 then
    return "shard_mib is not a number of MiB"
  elseif type(site.partitions) ~= "table" then
    return "has no partitions"
  end
  for name, mode in pairs(site.modes or {}) do
    if not MODES[mode] then
      return "mode of partition " .. tostring(name) .. ' is not "observe", "opt-in", "known" or "on" (gpumem.toml)'
    end
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

--- `mode` of [sharing] in the text of a gpumem.toml, which gpusbatch reads too, nil where it says nothing; and the
-- modes of [sharing.partition.NAME] by their names.
function M.modes_in(text)
  local header, mode, modes = "", nil, {}
  for line in string.gmatch(text, "[^\r\n]+") do
    header = match(line, "^%s*%[%s*([^%[%]]-)%s*%]") or header
    local key, value = match(line, "^%s*([%w_.]+)%s*=%s*[\"']([^\"']*)[\"']")
    local partition = match(header, "^sharing%.partition%.[\"']?([^\"']+)[\"']?$")
    if key == (header == "" and "sharing.mode" or "mode") and (header == "" or header == "sharing") then
      mode = value
    elseif key == "mode" and partition then
      modes[partition] = value
    end
  end
  return mode, modes
end

local function read_modes(path)
  local file = io.open(path)
  local text = file and file:read(MAX_TOML_BYTES)
  if file then
    file:close()
  end
  return M.modes_in(text or "")
end

--- The table in a file, read as data (it cannot call anything), with the mode that the gpumem.toml beside it sets;
-- and `modes` of its partitions; or nil and the error.
function M.load_site(path, toml)
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
  if fine and type(site) == "table" then
    local mode, modes = read_modes(toml)
    site.mode, site.modes = mode or site.mode or "opt-in", modes -- tables written before held a mode, too
  end
  why = not fine and tostring(site) or M.check_site(site)
  if why then
    return nil, path .. ": " .. why
  end
  return site
end

return M
