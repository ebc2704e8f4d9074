"""The fake server of the tests answers as fakeredis does: in words, numbers and errors."""

import fakeredis
import pytest
import redis

from redis_replay._lua import load
from tests._fake import FakeServer, _bytecode

SCRIPTS = [
    "return {1, 2.7, ARGV[1], KEYS[1], {'deep'}, false, 'never seen'}",
    "return redis.error_reply('MINE it is')",
    "return redis.status_reply('fine')",
    "local n = (n or 0) + 1; return n",
    "counted = 1",
    "error('on purpose')",
    "local a = 1\nlocal none\nreturn none.field",
    "return redis.call('GET')",
    "return redis.pcall('NOSUCH', 'x')",
    "return redis.call('INCR', KEYS[1])",
    "return 1 +",
    load("stats").text,
]


def answers(server, script):
    """What three calls of a script give, by its text and by its name, before and after the server forgot its texts."""
    found = []
    with fakeredis.FakeRedis(server=server) as client:
        sha = client.script_load(script)
        calls = [lambda: client.eval(script, 1, "k", "a"), lambda: client.evalsha(sha, 1, "k", "a")]
        for call in (*calls, client.script_flush, calls[1], *calls):
            try:
                found.append(call())
            except redis.RedisError as error:
                found.append((type(error), str(error)))
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_script_that_was_compiled_before_is_the_same(script):
    """Its values, its errors with their line numbers; and what a server forgot is unknown there until it comes again."""
    expected = answers(fakeredis.FakeServer(), script)
    assert answers(FakeServer(), script) == expected
    assert answers(FakeServer(), script) == expected  # compiled before, by another server


def test_a_script_is_compiled_once():
    """However many servers run it."""
    text = "return 'of test_a_script_is_compiled_once'"
    before = _bytecode.cache_info().misses
    for _ in range(2):
        answers(FakeServer(), text)
    assert _bytecode.cache_info().misses - before == 1
