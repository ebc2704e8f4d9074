"""The rights that the server's ACL must give a user, and which of them a refusal says is missing. No I/O here.

A script runs with its caller's rights, and one that is refused in its middle has done half its work. So they are looked at
before anything is done: a command inside a MULTI is judged when it is queued, and a DISCARD does none of it.
docs/security.md has them as a line; a test compares that, this table and the scripts.
"""

import re
from functools import cache

from redis_replay._keys import Keys
from redis_replay._lua import load, verbs

# What is queued for each command: K is the key that is never there, E the channel of events, W that of the client.
READ = {
    "exists": "K", "hget": "K f", "hgetall": "K", "hlen": "K", "hmget": "K f", "hscan": "K 0", "scard": "K",
    "script|load": "x", "sismember": "K m", "smismember": "K m", "sscan": "K 0", "type": "K", "xinfo|stream": "K", "xlen": "K",
    "xrange": "K - +", "zcard": "K", "zcount": "K 0 1", "zmscore": "K m", "zscan": "K 0",
}  # fmt: skip
WRITE = {
    "del": "K", "exec": "", "hdel": "K f", "hexists": "K f", "hincrby": "K f 1", "hset": "K f v", "hvals": "K",
    "persist": "K", "pexpire": "K 1", "pttl": "K", "publish": "E x",
    "pubsub|numsub": "W", "rename": "K K", "sadd": "K m", "srem": "K m", "subscribe": "W E", "time": "",
    "unlink": "K", "xadd": "K 0-1 d v", "xdel": "K 0-1", "xgroup|create": "K g 0", "xgroup|destroy": "K g",
    "xrevrange": "K + -", "xtrim": "K MAXLEN 0", "zadd": "K 0 m", "zrange": "K 0 1", "zrangebyscore": "K 0 1",
    "zrem": "K m", "zremrangebyrank": "K 0 1", "zrevrange": "K 0 1", "zscore": "K m",
}  # fmt: skip
OPTIONAL = ("info",)  # what lua/greet.lua goes on without
FIRST = ("client|setname", "multi", "discard", "evalsha")  # what logging in and the look itself need

Command = tuple[bytes, ...]

_COMMAND = re.compile(r"permissions to run the '([^']+)' command")
_UNNAMED = re.compile(r"can't run this command or subcommand script: (\w{40}), on @user_script:(\d+)")
_LITERAL = re.compile(r"'([A-Z]+)'(?:, '([A-Z]+)')?")
_KEY = ("access one of the keys", "permissions to access a key", "access at least one of the keys")
_CHANNEL = ("access one of the channels", "permissions to access a channel", "publish to the channel")


def probes(keys: Keys, channel: str) -> tuple[list[Command], list[Command]]:
    """Commands to be queued in a MULTI: what readers need, and what all others need besides."""
    named = {"K": keys.key("none"), "E": keys.events, "W": channel}

    def command(right: str, arguments: str) -> Command:
        words = (*right.upper().split("|"), *(named.get(word, word) for word in arguments.split()))
        return tuple(word.encode() for word in words)

    script = (b"EVALSHA", b"0" * 40, b"%d" % len(keys.all), *(key.encode() for key in keys.all))
    writes = {right: arguments for right, arguments in WRITE.items() if right != "exec"}  # it would do what is queued
    return [script, *(command(*item) for item in READ.items())], [command(*item) for item in writes.items()]


def missing(text: str, name: str) -> tuple[str, ...]:
    """The right that a refusal is about, as ACL SETUSER takes it; none if it is about something else.

    Redis 7.0 does not say which command a script may not run, but where in the script it stands. Where that is a line which
    several share, it is all of them.
    """
    if found := _COMMAND.search(text):
        return (f"+{found[1]}",)
    if found := _UNNAMED.search(text):
        return tuple(f"+{right}" for right in _at(found[1], int(found[2])))
    if any(words in text for words in _KEY):
        return ("~" + Keys(name).key("*"),)
    return ("&" + Keys(name).key("*"),) if any(words in text for words in _CHANNEL) else ()


@cache
def _at(sha: str, line: int) -> list[str]:
    """The commands that the script with this name runs on this line of it."""
    lines = next((load(verb).text.splitlines() for verb in verbs() if load(verb).sha == sha), [])
    here = commands("\n".join(lines[line - 1 : line]))
    return here or commands("\n".join(text for text in lines if "_many('" in text)) or ["@all"]


def commands(text: str) -> list[str]:
    """The commands that stand in a piece of a script."""
    pairs = {(first.lower(), second.lower()) for first, second in _LITERAL.findall(text)}
    return sorted(({f"{a}|{b}" for a, b in pairs} | {a for a, _ in pairs}) & (READ.keys() | WRITE.keys()))
