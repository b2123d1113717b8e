-- gpumem_filter.lua: plain sbatch, srun and salloc ask for the part of a GPU that their job needs.
--
-- cli_filter.lua loads this file in each of those commands, as the user. Whether a job is one for us is found out
-- here, without a process; what it is to ask for, our command says, which has 3 seconds. Whatever fails, the job
-- goes to Slurm as it was typed. Runs on Lua 5.1 to 5.4.

local M = {}

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "./"

local MAX_SCRIPT_BYTES, MAX_TOML_BYTES = 65536, 262144
local MAX_CONF_BYTES = 65536
local MAX_ANSWER_BYTES = 16384
local MAX_COMMAND_BYTES = 120000 -- Linux takes no longer word; sh -c gets the options in one
local MAX_ARGUMENTS = 4000 -- Slurm's JSON of more takes seconds
local END = "gpumem-end-of-options"
local NOT_ROOTS = "not-roots"

local find, match, gmatch, lower = string.find, string.match, string.gmatch, string.lower

-- Opened for writing, too, a named pipe does not wait for its other end.
local function opened(path)
  return io.open(path, "r+") or io.open(path)
end

-- All of a regular file, from its beginning. Anything else would block, or be used up by reading it.
local function content(file, bytes)
  local text
  if file and file:seek("end") and file:seek("set") then
    text = file:read(bytes)
  end
  if file and file ~= io.stdin then
    file:close()
  end
  return text or ""
end

-- The script's text; "" where there is none to be had.
local function script(options)
  local argv = options["argv"]
  local path = argv and argv[1]
  if options["type"] ~= "sbatch" or options["wrap"] then
    return ""
  elseif not path then
    return content(io.stdin, MAX_SCRIPT_BYTES)
  end
  return content(opened(path), MAX_SCRIPT_BYTES)
end

-- GPUs that the job asks for, the most that any option says; 0 for none and for shares named by hand.
local function gpus(options)
  local most = 0
  local function count(text)
    most = math.max(most, tonumber(match(text, "[:=](%d+)$") or match(text, "^(%d+)$") or 1))
  end
  for item in gmatch(options["gres"] or "", "[^,]+") do
    local name = match((item:gsub("^gres[:/]", "")), "^[^:=]+")
    if name == "gpu" then
      count(item)
    elseif name == "shard" or name == "mps" then
      return 0
    end
  end
  for _, name in ipairs({ "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }) do
    local value = options[name]
    if value and value ~= "" then
      count(value)
    end
  end
  return most
end

-- Whether a mode of the site's lets jobs share that do not ask, or has them recorded; and whether one may trace them.
local function unasked()
  local mine = os.getenv("GPUMEM_SHARING_MODE") or ""
  local path = os.getenv("GPUMEM_SITE_CONFIG") or here .. "gpumem.toml"
  local text = content(opened(path), MAX_TOML_BYTES) .. 'mode = "' .. mine .. '"'
  local found = {}
  for mode in gmatch(text, "mode%s*=%s*[\"']([%w-]+)") do
    found[mode] = true
  end
  return found.known or found.on or found.observe or false, found.on or false
end

-- Whether this is the sbatch that gpusbatch has called: GPUMEM_SUBMITS holds the number of its process.
local function from_gpusbatch()
  local by = os.getenv("GPUMEM_SUBMITS")
  local file = by and io.open("/proc/self/stat")
  local line = file and file:read() or ""
  if file then
    file:close()
  end
  local pid, parent = match(line, "^(%d+) %(.*%) %a (%d+)")
  return by ~= nil and (by == pid or by == parent)
end

local function given(name)
  return (os.getenv(name) or "") ~= ""
end

--- Whether our command is to be asked, and whether it may take its time: it traces the script.
function M.wanted(options)
  local off = lower(os.getenv("GPUMEM") or "")
  if off == "off" or off == "no" or off == "0" then
    return false
  elseif options["type"] == "srun" and (os.getenv("SLURM_JOB_ID") or find(options["jobid"] or "", "^%d")) then
    return false -- a step, which gets what its job has
  elseif find(options["comment"] or "", "gpumem/1:", 1, true) or from_gpusbatch() then
    return false
  end
  local text = script(options)
  local directive = "\n#GPUMEM"
  local traces = given("GPUMEM_TRACE") or find(text, directive .. "[^\n]*%strace")
  if traces or given("GPUMEM_MODEL") or given("GPUMEM_MEM") or find(text, directive, 1, true) then
    return true, traces
  end
  if gpus(options) == 1 then
    return unasked()
  end
  return false
end

-- Shell words that run our command, with the Python that hooks.conf names for the hooks; nil where that says none.
-- The shell only looks whose file it is: another user's would run as us. It is root's, or ours; in a user namespace root shows as 65534.
local function command(limit)
  local path = here .. "gpumem/hooks.conf"
  local file = opened(path)
  if not file then
    path = "/etc/slurm/gpumem/hooks.conf"
    file = opened(path)
  end
  local python, trusted = "/usr/bin/python3", ""
  if file then
    for value in gmatch("\n" .. content(file, MAX_CONF_BYTES), "\n%s*python=([^%s;]*)") do
      python = match(value, "^[\"']?(/[%w/._+@-]+)[\"']?$")
    end
    local quoted = "'" .. path:gsub("'", "'\\''") .. "'"
    trusted = "o=0; read -r _ _ n </proc/self/uid_map && [ $n != 4294967295 ] && o=65534; [ -O " .. quoted
      .. " ] && o='*'; case $(/usr/bin/stat -Lc %u:%A " .. quoted .. ") in 0:-????-??-? | $o:-????-??-?) ;; *) echo "
      .. NOT_ROOTS .. "; exit ;; esac; "
  end
  return python and trusted .. "exec " .. limit .. python .. " -I -m slurm_gpumem.cli.cli_filter ", path
end

-- Options to set, in their order; nil and the reason where our command did not answer.
local function ask(options, slow)
  local argv = options["argv"] or {}
  local json = #argv <= MAX_ARGUMENTS and slurm.json_cli_options(options)
  local limit = slow and "" or "/usr/bin/timeout -k 1 3 "
  -- A batch script on standard input is all that our command reads there, and it may be closed otherwise.
  local stdin = options["type"] == "sbatch" and not argv[1] and " 3<&0" or ""
  local words, conf = command(limit)
  if not words then
    return nil, "python= in " .. conf .. " must be the whole path of a Python"
  end
  local text = words .. options["type"] .. " $PPID" .. stdin .. " <<'" .. END .. "'\n" .. (json or "") .. "\n" .. END .. "\n"
  if not json or #text > MAX_COMMAND_BYTES then
    return nil, "its options are too long"
  end
  local pipe = io.popen(text)
  local output = pipe and pipe:read(MAX_ANSWER_BYTES) or ""
  if pipe then
    pipe:close()
  end
  local found = {}
  for line in gmatch(output, "([^\n]*)\n") do
    if line == "done" then
      return found
    elseif line == NOT_ROOTS then
      return nil, conf .. " is not root's, or others may write it"
    end
    local name, value = match(line, "^([%w-]+)=(.*)$")
    found[#found + 1] = name and { name, (value:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)) }
  end
  return nil, "our command failed, or took more than 3 seconds"
end

--- Called for each submission, before the controller hears of it; of a heterogeneous job for each component.
function M.pre_submit(options, offset)
  local fine, why = pcall(function()
    local asked, slow = M.wanted(options)
    if not asked or (offset or 0) > 0 then -- the first one says for all that they stay as they are
      return
    end
    local changes, failed = ask(options, slow)
    if not changes then
      slurm.log_error("%s", "gpumem: the job goes to Slurm as it is: " .. failed)
      return
    end
    for _, change in ipairs(changes) do
      options[change[1]] = change[2]
    end
  end)
  if not fine then
    slurm.log_error("%s", "gpumem: " .. tostring(why))
  end
end

--- `slurm_cli_pre_submit` for a site whose own rules run first; a submission that they refuse stays as it is.
function M.after(rules)
  return function(options, ...)
    local answer = rules and rules(options, ...)
    if answer == nil or answer == slurm.SUCCESS then
      M.pre_submit(options, ...)
    end
    return answer or slurm.SUCCESS
  end
end

return M
