"""Every refusal of every script leaves no trace: no key is changed but the remembered answer, and nothing is published."""

from struct import pack

import pytest

from redis_replay import ReplayBuffer
from redis_replay._encode import encode_batch
from redis_replay._keys import Keys
from redis_replay._lua import header, load, verbs
from redis_replay._ops_admin import FORMAT
from redis_replay.limiters import Queue
from redis_replay.samplers import Fifo
from tests._contract import LARGE, SMALL, Records, about, nothing_changes

ANSWERS = {"OK", "MORE", "OPEN", "READY", "REWOUND"}
NUMBERED = (
    "add", "gate", "sample", "ack", "release", "remove", "update", "version", "empty", "shutdown", "reopen", "wait",
    "settle", "resolve", "pace", "alpha", "swap",
)  # fmt: skip
ENTERING = ("get", "page", "stats", "renew", "greet", "cut", "rows")
KNOWING = (*ENTERING, "doctor")
PLAIN = (*KNOWING, "weights", "audit", "delete", "survey", "fence", "restore", "mend")


def rows(width=SMALL, **leaves):
    """Three records, with more leaves if named."""
    return encode_batch(Records(width).many(0, 3) | leaves, None)


def numbered(raw, verb, width=SMALL, **kwargs):
    """A request of each numbered verb that a buffer of five records would grant. A gate's answer is its first."""
    given = rows(width, **kwargs.pop("leaves", {}))
    if verb in ("add", "gate"):
        described = about(given) | ({"schema": kwargs.pop("schema")} if "schema" in kwargs else {})
        more = {"payload": given.payloads()} if verb == "add" else {"step": "open", "n": 3}
        return raw(verb, **described, **more, **kwargs)
    if verb in ("sample", "wait"):
        return getattr(raw, verb)(kwargs.pop("need", 2), **kwargs)
    arguments = {verb: {"lease": ["nobody.1"]} for verb in ("ack", "release")}
    arguments |= {"remove": {"index": [1, 2]}, "empty": {"reset": 1}, "shutdown": {"drain": 0}, "settle": {"forget": 0}}
    arguments["pace"] = {"rate_limiter": "Queue(size=9)", "law": "1 1 1 0 9 9 1"}
    arguments["alpha"] = {"alpha": "0.5", "cursor": "0", "process": ""}
    arguments["version"] = {"version": 5}
    arguments["swap"] = {"copy": "a", "high": kwargs.pop("high", 9), "own": kwargs.pop("own", 1), "totals": "", "shares": []}
    arguments["swap"]["copy"] = kwargs.pop("copy", "a")
    arguments["update"] = {"index": pack("<d", 1), "priority": pack("<d", 2.5)}
    return raw(verb, **arguments.get(verb, {}), **kwargs)


def plain(raw, verb, **kwargs):
    """A call of each verb without a number."""
    arguments = {"get": {"index": [1]}, "page": {"after": 0, "page_size": 9}, "audit": {"what": "order", "cursor": "0"}}
    arguments["weights"] = {"cursor": "0"}
    arguments["renew"] = {"name": [raw.name]}
    arguments["greet"] = {"given": 9, "numbers": "raw:9"}
    arguments["cut"] = {"id": "a", "step": "open", "most_bytes": 999}
    arguments["rows"] = {"id": "a", "after": 0, "page_size": 9}
    arguments["survey"] = {"after": 0, "page_size": 9, "with_bytes": 0}
    arguments["fence"] = {"id": "a", "hold_us": 999_999, "renew": 0}
    arguments["mend"] = {"id": "a", "copy": "a", "high": 9, "forget": 0, "totals": "", "shares": []}
    arguments["stage"] = {"first": 1, "ttl_ms": 9999, "config": COPY}
    arguments["restore"] = {
        "ttl_ms": 9999, "index": "1", "uses": "", "priority": "", "version": "", "writer": "", "upto": 0, "skipped": 0,
        "payload": ["x"],
    }  # fmt: skip
    return raw(verb, **arguments.get(verb, {}) | kwargs)


COPY = ["capacity", "9", "sampler", "Fifo()", "remover", "Fifo()", "consume_after_n_samples", "1", "record_bytes", "9"]


class Scene:
    """A buffer of five records, a lane on it, and hands to spoil it with."""

    def __init__(self, buffer, raw, client):
        self.buffer, self.raw, self.client = buffer, raw, client

    def key(self, what):
        return self.raw.keys.key(what)

    def open(self, mode="create", epoch="another", **options):
        """Runs `open` itself."""
        named = {"capacity": "100", "sampler": "Fifo()", "consume_after_n_samples": "1"} | options
        triples = [part for name, value in named.items() for part in (name, value, 1)]
        keys = self.raw.keys.all
        reply = self.client.eval(load("open").text, len(keys), *keys, epoch, FORMAT, mode, *triples)
        return [part.decode() for part in reply]


# What each refusal needs: first what is done before (nothing may change after it), then the request.
def shut(scene):
    scene.buffer.shutdown(drain=False)


def lose_stream(scene):
    scene.client.delete(scene.key("records"))


def lose_counters(scene):
    scene.client.delete(scene.key("counters"))


def lose_config(scene):
    scene.client.delete(scene.key("config"))


def add_foreign(scene):
    scene.client.xadd(scene.key("records"), {"d": "x"})


def lose_entry(scene):
    scene.client.xdel(scene.key("records"), "0-1")


def fill_counter(scene):
    scene.client.hset(scene.key("counters"), "write_count", 2**63 - 2)


def make_huge(scene):
    scene.client.hset(scene.key("config"), "record_bytes", 10**9)
    scene.client.hset(scene.key("counters"), "bytes_total", 10**15)


def lend_all(scene):
    scene.client.hset(scene.key("config"), "capacity", 5)
    scene.buffer.sample(5, lease=1000.0)


def fill_queue(scene):
    scene.buffer.set_rate_limiter(Queue(5))


def forget_schema(scene):
    scene.client.hdel(scene.key("config"), "schema_hash", "schema")


def let_lapse(scene):
    scene.raw.sample(2)
    scene.raw.pass_time(61)
    scene.buffer.stats()


def outrun(scene):
    scene.raw.settle(number=30)


def spoil_format(scene):
    scene.client.hset(scene.key("config"), "format", "new")


def spoil_type(scene):
    scene.client.delete(scene.key("holes"))
    scene.client.set(scene.key("holes"), "x")


def lose_all(scene):
    scene.client.delete(*map(scene.key, ("config", "counters", "records", "order", "requests", "lanes", "writers")))


def raise_version(scene):
    assert scene.raw("version", version=6)[0] == "OK"


def nothing(scene):
    pass


def dump(scene):
    assert plain(scene.raw, "cut", id="b")[0] == "OK"


def fence_off(scene):
    assert plain(scene.raw, "fence", id="b")[0] == "OK"


def copy_beside(scene):
    assert plain(scene.raw, "stage", epoch="a")[0] == "OK"


def shut_beside(scene):
    copy_beside(scene)
    shut(scene)


def another_copy(scene):
    assert plain(scene.raw, "stage", epoch="b", config=[*COPY, "schema_hash", "another"])[0] == "OK"


def spoil_copy(scene):
    copy_beside(scene)
    scene.client.delete(scene.raw.keys.copy.key("records"))


def spoil_sampler(scene):
    scene.client.hset(scene.key("config"), "sampler", "None of ours()")


def forgotten(scene, verb):
    scene.raw.name = "nobody"
    return numbered(scene.raw, verb)


def for_each(names, word, before, request):
    return {(verb, word, before.__name__): (before, lambda scene, verb=verb: request(scene, verb)) for verb in names}


CASES = {
    **for_each(NUMBERED, "GONE", nothing, lambda s, verb: numbered(s.raw, verb, epoch=b"another")),
    **for_each(PLAIN, "GONE", nothing, lambda s, verb: plain(s.raw, verb, epoch=b"another")),
    **for_each(NUMBERED, "STALE", outrun, lambda s, verb: numbered(s.raw, verb, number=29)),
    **for_each([v for v in NUMBERED if v != "settle"], "FORGOTTEN", nothing, forgotten),
    **for_each(NUMBERED, "DAMAGED", lose_stream, lambda s, verb: numbered(s.raw, verb)),
    **for_each(NUMBERED, "DAMAGED", lose_counters, lambda s, verb: numbered(s.raw, verb)),
    **for_each(ENTERING, "DAMAGED", lose_stream, lambda s, verb: plain(s.raw, verb)),
    **for_each(KNOWING, "DAMAGED", lose_counters, lambda s, verb: plain(s.raw, verb)),
    **for_each(NUMBERED, "DAMAGED", lose_config, lambda s, verb: numbered(s.raw, verb)),
    **for_each(KNOWING, "DAMAGED", lose_config, lambda s, verb: plain(s.raw, verb)),
    **for_each(("add", "gate"), "DAMAGED", add_foreign, lambda s, verb: numbered(s.raw, verb)),
    **for_each(("sample",), "DAMAGED", lose_entry, lambda s, verb: numbered(s.raw, verb)),
    **for_each(("add", "gate", "sample", "wait"), "SHUT", shut, lambda s, verb: numbered(s.raw, verb)),
    **for_each(("add", "gate"), "LIMIT", fill_counter, lambda s, verb: numbered(s.raw, verb)),
    **for_each(("add", "gate"), "SCHEMA", nothing, lambda s, verb: numbered(s.raw, verb, leaves={"y": [1, 2, 3]})),
    **for_each(("add", "gate"), "NO_SCHEMA", forget_schema, lambda s, verb: numbered(s.raw, verb, schema="")),
    **for_each(("gate",), "CLOSED", nothing, lambda s, verb: s.raw.gate(rows(LARGE), steps=("close",))[0]),
    **for_each(("sample", "wait"), "NOT_READY", nothing, lambda s, verb: numbered(s.raw, verb, need=9)),
    **for_each(("add", "gate"), "NOT_READY", fill_queue, lambda s, verb: numbered(s.raw, verb)),
    **for_each(("sample",), "TOO_LARGE", make_huge, lambda s, verb: numbered(s.raw, verb)),
    **for_each(("sample",), "LAPSED", let_lapse, lambda s, verb: s.raw.sample(2, number=s.raw.number)),
    **for_each(("version",), "LOWER", raise_version, lambda s, verb: numbered(s.raw, verb)),
    ("cut", "RUNNING", "dump"): (dump, lambda s: plain(s.raw, "cut")),
    ("rows", "CLOSED", "dump"): (dump, lambda s: plain(s.raw, "rows")),
    ("fence", "RUNNING", "fence_off"): (fence_off, lambda s: plain(s.raw, "fence")),
    ("fence", "CLOSED", "nothing"): (nothing, lambda s: plain(s.raw, "fence", renew=1)),
    ("stage", "RUNNING", "another_copy"): (another_copy, lambda s: plain(s.raw, "stage", epoch="a")),
    ("restore", "DAMAGED", "spoil_copy"): (spoil_copy, lambda s: plain(s.raw, "restore", epoch="a")),
    ("mend", "CLOSED", "nothing"): (nothing, lambda s: plain(s.raw, "mend")),
    ("survey", "DAMAGED", "spoil_sampler"): (spoil_sampler, lambda s: plain(s.raw, "survey")),
    ("swap", "CLOSED", "another_copy"): (another_copy, lambda s: numbered(s.raw, "swap")),
    ("swap", "SHUT", "shut"): (shut_beside, lambda s: numbered(s.raw, "swap")),
    ("swap", "SCHEMA", "another_copy"): (another_copy, lambda s: numbered(s.raw, "swap", copy="b")),
    ("swap", "LIMIT", "copy_beside"): (copy_beside, lambda s: numbered(s.raw, "swap", high=2**53)),
    ("swap", "MOVED", "copy_beside"): (copy_beside, lambda s: numbered(s.raw, "swap", own=0)),
    **for_each(("add", "gate"), "FULL", lend_all, lambda s, verb: numbered(s.raw, verb)),
    ("open", "MISMATCH", "nothing"): (nothing, lambda s: s.open(capacity="7")),
    ("open", "FORMAT", "spoil_format"): (spoil_format, lambda s: s.open()),
    ("open", "DAMAGED", "spoil_type"): (spoil_type, lambda s: s.open()),
    ("open", "NOT_FOUND", "lose_all"): (lose_all, lambda s: s.open("attach")),
}

UNREACHABLE = {("settle", "FORGOTTEN")}  # it registers the lane that it does not know


def test_every_refusal_has_a_case():
    """A word that a header lists, and that is no success, is tried here; nothing else is."""
    listed = {(verb, word) for verb in verbs() for word in header(verb).returns if word not in ANSWERS}
    assert {case[:2] for case in CASES} == listed - UNREACHABLE


@pytest.fixture
def scene(server, make_buffer, make_raw, client):
    buffer = make_buffer(sampler=Fifo(), consume_after_n_samples=1)
    buffer.extend(Records(SMALL).many(0, 5))
    raw = make_raw()
    yield Scene(buffer, raw, client)
    client.delete(*raw.keys.all)


@pytest.fixture
def published(client):
    """Gives `published()`: every message on a channel of ours since the test began."""
    with client.pubsub() as pubsub:
        pubsub.psubscribe("rr:*")
        assert pubsub.get_message(timeout=5)["type"] == "psubscribe"

        def look():
            client.publish("rr:end", "end")
            messages = []
            while not messages or messages[-1]["channel"] != b"rr:end":
                message = pubsub.get_message(timeout=5)
                assert message is not None
                messages.append(message)
            return [message["data"] for message in messages[:-1]]

        yield look


@pytest.mark.parametrize(("word", "before", "request_"), [(k[1], *v) for k, v in CASES.items()], ids=map("-".join, CASES))
def test_a_refusal_leaves_no_trace(scene, client, published, word, before, request_):
    """Of all keys only the remembered answer and the line differ, and no message was published."""
    before(scene)
    published()
    with nothing_changes(client):
        assert request_(scene)[0] == word
    assert published() == []


@pytest.mark.parametrize("verb", ["sample", "wait"])
def test_a_refusal_may_join_the_line(scene, client, published, verb):
    """The waiter that was asked for is the only other trace."""
    with nothing_changes(client, (":counters", ":requests", ":lanes", ":waiters", ":waiting")):
        assert numbered(scene.raw, verb, need=9, wait=1)[0] == "NOT_READY"
    assert client.zrange(scene.key("waiters"), 0, -1) == [b"raw"]
    assert published() == []


def test_a_refused_call_of_the_library_leaves_no_trace(server, make_buffer, client, published, small):
    """The same as seen from the public interface, for a call that a script refuses."""
    buffer = make_buffer()
    buffer.extend(small.many(0, 3))
    published()
    for refused in (lambda: buffer.sample(4), lambda: ReplayBuffer(server.target(), buffer.name, capacity=5)):
        with nothing_changes(client), pytest.raises(Exception, match=buffer.name):
            refused()
    assert published() == []


def test_a_published_message_is_seen(scene, published):
    """The look for messages can fail: a shutdown publishes."""
    scene.buffer.shutdown(drain=False)
    assert published() == [b"shut"]


def test_a_stored_record_is_seen(scene, client):
    """The look for changes can fail: an add changes the stream."""
    with pytest.raises(AssertionError), nothing_changes(client):
        numbered(scene.raw, "add")


def test_keys_are_the_buffers_own(scene, client):
    """What was compared are all keys of the database, which are the buffer's."""
    assert {key.decode() for key in client.scan_iter()} <= set(Keys(scene.buffer.name).all)
