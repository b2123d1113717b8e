-- An example of a site's job_submit.lua. Lines marked gpumem are ours: three run when
-- the file is loaded and one for each job. Each is safe on its own: if gpumem.lua is missing
-- or broken, slurmctld starts, jobs are accepted unchanged, and the log says why.
--
-- slurmctld reloads this file when it changes, but not the files that it loads:
-- `touch` it after changing gpumem.lua or gpumem_site.lua.

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"  -- gpumem
local loaded, gpumem = pcall(dofile, here .. "gpumem.lua")                           -- gpumem
if not loaded then slurm.log_error("%s", "gpumem: " .. tostring(gpumem)) end         -- gpumem

function slurm_job_submit(job_desc, part_list, submit_uid)
  pcall(function() gpumem.job_submit(job_desc, part_list) end)                       -- gpumem
  -- The site's own rules go here.
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
