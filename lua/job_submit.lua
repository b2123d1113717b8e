-- An example of a site's job_submit.lua: the site's own rules, then three lines, marked gpumem, at the end.
-- The lines are safe: if gpumem.lua is missing or broken, slurmctld starts, the site's rules apply,
-- jobs are accepted unchanged, and the log says why.
--
-- slurmctld reloads this file when it changes, but not the files that it loads:
-- `touch` it after changing gpumem.lua, gpumem_site.lua or the mode in gpumem.toml.

function slurm_job_submit(job_desc, part_list, submit_uid)
  -- The site's own rules go here.
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

-- after: the site's rules see the request as the user wrote it; before: as we changed it.
local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"                             -- gpumem
local fine, why = pcall(function() slurm_job_submit = dofile(here .. "gpumem.lua").after(slurm_job_submit) end) -- gpumem
if not fine then slurm.log_error("%s", "gpumem: " .. tostring(why)) end                                         -- gpumem
