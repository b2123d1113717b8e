-- Play one submission: lua play_job.lua LUA_FOLDER CASE_FILE. Prints "what<TAB>value" lines.
-- The job behaves as slurmctld's does: setting nil raises, and so does a field that Slurm
-- does not let Lua write; the environment exists for batch jobs only.

local folder, case_file = arg[1], arg[2]
local case = dofile(case_file)
local said = {}

local function say(what, ...)
  said[#said + 1] = what .. "\t" .. string.format(...):gsub("\n", "\\n")
end

slurm = {
  SUCCESS = 0,
  log_user = function(...) say("user", ...) end,
  log_info = function(...) say("info", ...) end,
  log_error = function(...) say("error", ...) end,
}

local WRITABLE = {}
for name in string.gmatch(case.writable or "tres_per_node tres_per_job tres_per_task tres_per_socket comment "
  .. "admin_comment pn_min_memory cpus_per_task min_cpus", "%S+") do
  WRITABLE[name] = true
end

local function guarded(values, writable)
  return setmetatable({}, {
    __index = values,
    __newindex = function(_, key, value)
      if value == nil or (writable and not writable[key]) then
        error("bad argument to field " .. tostring(key))
      end
      values[key] = value
    end,
  })
end

local values = case.job
local environment = values.environment or {}
if values.script then
  values.environment = guarded(environment)
else
  values.environment = setmetatable({}, { __index = function() error("environment only for batch jobs") end })
end

local opened = {}
local gpumem = dofile(folder .. "/gpumem.lua")
if case.site then
  gpumem.site = case.site
end
for _, name in ipairs({ "open", "popen", "lines" }) do
  io[name] = function() opened[#opened + 1] = name error("io." .. name .. " at submit time") end
end
for _, name in ipairs({ "dofile", "loadfile", "require", "load", "loadstring" }) do
  _G[name] = function() opened[#opened + 1] = name error(name .. " at submit time") end
end

local job = guarded(values, WRITABLE)
local start = os.clock()
local repeats = case.repeats or 1
for _ = 1, repeats do
  local fine, why = pcall(gpumem.job_submit, job, case.partitions)
  if not fine then say("raised", "%s", tostring(why)) end
end
local seconds = (os.clock() - start) / repeats

values.environment = nil
for key, value in pairs(values) do
  if key ~= "script" then
    say("job." .. key, "%s", tostring(value))
  end
end
for key, value in pairs(environment) do
  say("env." .. key, "%s", value)
end
say("ms", "%.3f", seconds * 1000)
say("opened", "%d", #opened)
print(table.concat(said, "\n"))
