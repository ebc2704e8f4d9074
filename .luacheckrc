-- For the joined scripts (see tests/house/lint_lua.py): what a script may use on Redis, Valkey and fakeredis alike.
std = "lua51"
read_globals = { "redis", "cjson", "KEYS", "ARGV" }
-- Names of Lua 5.1 that a server does not have, or that give other results on each.
not_globals = {
  "arg", "collectgarbage", "coroutine", "dofile", "getfenv", "io", "load", "loadfile", "loadstring", "module", "newproxy",
  "os", "package", "print", "require", "setfenv",
}
max_line_length = 130
codes = true
