-- Evaluate memory lines: lua evaluate_lines.lua LUA_FOLDER CASES. Prints "peak request" or "nil" for each
-- case { text, batch, gpu }.
local lines = dofile(arg[1] .. "/gpumem_line.lua")
for _, case in ipairs(dofile(arg[2])) do
  local line = lines.parse(case[1])
  if line then
    print(string.format("%d %d", lines.memory(line, case[2], case[3])))
  else
    print("nil")
  end
end
