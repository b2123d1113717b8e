-- gpumem_request.lua: what a job asks for, in Slurm's terms: whole GPUs or shares, what speaks against sharing, and
-- the same request for a share. Loaded by gpumem.lua, whose rules apply here too.

local read = ...

local M = {}

local NO_VAL, NO_VAL16 = 4294967294, 65534 -- slurm.h: the user gave no number

local find, match, format, lower = string.find, string.match, string.format, string.lower
local clean, given = read.clean, read.given

local OPTION = {
  tres_per_node = "--gres=", tres_per_job = "--gpus=", tres_per_task = "--gpus-per-task=",
  tres_per_socket = "--gpus-per-socket=",
}
local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

-- The item as the sbatch option it came from (or could have come from).
function M.as_option(item)
  local value = match(item.raw, "^gres[:/](.*)$") or item.raw
  if item.field ~= "tres_per_node" then
    value = match(value, "^gpu[:=](.*)$") or (value == "gpu" and "1" or value)
    value = value:gsub("=", ":")
  end
  return OPTION[item.field] .. value
end

-- How many nodes the job asks for, at least.
local function nodes_of(job)
  return given(job.min_nodes, NO_VAL) and math.max(1, job.min_nodes) or 1
end

-- Why a job on several nodes, or perhaps on several, cannot have a share of one GPU on each; or nil.
local function several_nodes(job, request)
  local nodes, tasks = nodes_of(job), given(job.num_tasks, NO_VAL) and job.num_tasks or 1
  if nodes == 1 then
    return tasks > 1 and job.max_nodes ~= 1 and "it may run on several nodes" or nil
  elseif tasks > nodes or (given(job.ntasks_per_node, NO_VAL16) and job.ntasks_per_node > 1) then
    return "it runs several tasks on the GPU of each node; --ntasks-per-node=1 would share"
  end
  return request.per_job and "--gpus counts the GPUs of all its nodes; --gres=gpu:1 would share" or nil
end

-- Why a job that asks for sharing keeps its original request, or nil.
function M.reason_to_leave(job, request, script, directives)
  local on_nodes = several_nodes(job, request)
  if directives and lower(directives["exclusive-gpu"] or "") == "yes" then
    return "it asks for exclusive-gpu=yes"
  elseif request.odd then
    return clean("its request " .. request.odd .. " is not understood")
  elseif job.shared == 0 then
    return "it asks for --exclusive"
  elseif given(job.het_job_offset, NO_VAL) then
    return "it is part of a heterogeneous job"
  elseif on_nodes then
    return on_nodes
  elseif request.gpus > 1 or request.per_socket or (request.per_task and job.num_tasks ~= 1) then
    return "it asks for several GPUs"
  elseif request.whole and not script then
    return "srun and salloc steps ask again for the GPU named on their command line;"
      .. " leave the GPU option out to share one"
  elseif (job.cpus_per_tres or "") ~= "" or (job.mem_per_tres or "") ~= ""
      or given(job.ntasks_per_tres, NO_VAL16) then
    return "Slurm refuses --cpus-per-gpu, --mem-per-gpu and --ntasks-per-gpu for part of a GPU"
  end
  if type(job.tres_freq) == "string" and find(job.tres_freq, "gpu", 1, true) then
    return "Slurm refuses --gpu-freq for part of a GPU"
  end
  if type(job.tres_bind) == "string" and find(job.tres_bind, "gpu", 1, true) then
    -- SLURM_TRES_BIND cannot be unset from here, and 26.05 gives steps no device with any other value.
    return "--gpus-per-task and --gpu-bind bind its steps to a whole GPU; --gres=gpu:1 would share"
  end
  local line = request.whole and script and read.find_gpu_srun(script)
  return line and format("line %d of the script has an srun that names GPUs", line) or nil
end

-- The items by kind: whole GPUs, the site's shared gres, and what prevents a rewrite.
function M.sort(items, site)
  local request = { gpus = 0, separator = site.separator or ":" }
  for _, item in ipairs(items) do
    request.separator = item.separator or request.separator
    if item.odd or item.name == (site.gres == "mps" and "shard" or "mps") then
      request.odd = request.odd or M.as_option(item)
    elseif item.name == "gpu" then
      local seen = request.whole and request.whole.field ~= item.field
      request.gpus = seen and math.max(request.gpus, item.count) or request.gpus + item.count
      request.per_job = request.per_job or item.field == "tres_per_job"
      request.per_task = request.per_task or item.field == "tres_per_task"
      request.per_socket = request.per_socket or item.field == "tres_per_socket"
      request.whole = request.whole or item
      request.kind = request.kind or item.kind
    elseif item.name == site.gres then
      request.odd = request.shared and M.as_option(item) or request.odd
      request.shared, request.kind = item, item.kind
      if item.field ~= "tres_per_node" then
        request.odd = M.as_option(item)
      end
    end
  end
  return request
end

-- New values of the four tres fields with the GPU taken out and `word` put in.
function M.rewritten(job, items, request, word)
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
function M.host_share(job, site, gpu, count)
  local numbers, nodes = {}, nodes_of(job)
  -- On several nodes the number of tasks is that of the nodes and says nothing about CPUs.
  local named = given(job.num_tasks, NO_VAL) and nodes == 1
  local asked_memory = job.min_mem_per_node or job.min_mem_per_cpu
  if gpu.host_mib and not asked_memory then
    local least = math.min(site.min_host_mib or 1, gpu.host_mib / 4)
    numbers.pn_min_memory = math.floor(math.max(1, least, gpu.host_mib * count / gpu.shares))
  end
  if gpu.cpus and not given(job.cpus_per_task, NO_VAL16) and not named
      and not (given(job.min_cpus, NO_VAL) and job.min_cpus > nodes) then
    local cpus = math.floor(gpu.cpus * count / gpu.shares)
    if cpus > 1 then
      numbers.cpus_per_task, numbers.min_cpus = cpus, cpus * nodes
    end
  end
  return numbers
end

return M
