-- An example of a site's cli_filter.lua: the site's own rules, then three lines, marked gpumem, at the end.
-- slurm.conf names it with CliFilterPlugins=lua. From then on a host without this file beside its slurm.conf
-- submits nothing: put it everywhere first. The three lines are safe: if gpumem_filter.lua is missing or broken,
-- jobs are submitted as they were typed.

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  -- The site's own rules go here.
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end

local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"                                         -- gpumem
local fine, why = pcall(function() slurm_cli_pre_submit = dofile(here .. "gpumem_filter.lua").after(slurm_cli_pre_submit) end) -- gpumem
if not fine then slurm.log_error("%s", "gpumem: " .. tostring(why)) end                                                     -- gpumem
