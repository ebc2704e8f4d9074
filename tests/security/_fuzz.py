"""Decodes what no encoder made, in a process of its own: prints what came out, the most processor time, and the memory.

python tests/security/_fuzz.py SEED
"""

import json
import random
import resource
import struct
import sys
import time

import numpy as np

from redis_replay._decode import decode_batch, decode_record
from redis_replay._encode import encode_record
from redis_replay._schema import Schema
from redis_replay.exceptions import RecordDecodeError

RECORDS = {
    "fixed": {"x": np.zeros(4, np.float32), "flag": True},
    "large": {"x": np.zeros(5000), "y": np.zeros(3, "U4")},
    "text": {"a": "abc", "b": b"12", "c": "", "x": np.int8(1)},
    "object": {"a": [1, (2.0, {"k": None})], "n": np.zeros(2)},
}
LENGTH, ALL = struct.pack("<I", 2**32 - 1), b"\xff" * 8


def bytes_of(record):
    """The record's schema, and its bytes."""
    rows = encode_record(record, None)
    return rows.schema, rows.payloads()[0]


def cells():
    """msgpack that lies about lengths, up to 2^40 by nesting, or is nested 10,000 deep."""
    for kind in (
        b"\xdc\xff\xff",
        b"\xdd" + LENGTH,
        b"\xde\xff\xff",
        b"\xdf" + LENGTH,
        b"\xc6" + LENGTH,
        b"\xc9" + LENGTH,
        b"\xdb" + LENGTH,
    ):
        for filling in (b"", b"\xc0" * 2000, kind * 500):
            yield kind + filling
    for deep in (b"\x91", b"\x81\xa1k", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"):
        yield deep * 10_000 + b"\xc0"
    yield b"\xdd\x00\x04\x00\x00" + b"\x80" * 2**18  # true lengths, all of it small objects
    yield b"\xc7\x01\x05" + b"x" * 10  # an extension type


def hostile(record, seed):
    """Payloads for one kind of record."""
    schema, payload = bytes_of(record)
    yield from (payload[:n] for n in range(min(len(payload), 200)))
    yield payload + b"\0"
    for at in range(0, min(len(payload), 64), 4):
        yield payload[:at] + LENGTH + payload[at + 4 :]
        yield payload[:at] + ALL
    count = len(schema.layout.variable)
    for cell in cells() if count else ():
        rest = bytes(schema.layout.head - 4 * count)
        yield struct.pack(f"<{count}I", *[0] * (count - 1), len(cell)) + rest + cell
        yield struct.pack(f"<{count}I", len(cell), *[0] * (count - 1)) + rest + cell
    for number in range(1000):
        generator = random.Random(f"{seed} {number}")
        noise = generator.randbytes(int(2 ** generator.uniform(0, 20)))
        yield noise
        if count:  # noise whose lengths are right, so that it is looked at
            yield struct.pack(f"<{count}I", len(noise), *[0] * (count - 1)) + bytes(schema.layout.head - 4 * count) + noise


def schemas():
    """Texts that a schema might be, and is not."""
    leaf = '["x"],"numpy","<f4",[%s]'
    yield from (
        f'{{"root":"dict","leaves":[[{leaf % d}]]}}' for d in (2**40, "1099511627776,1099511627776", "9" * 5000, "-1", "1e400")
    )
    yield from (o * 10_000 + c * 10_000 for o, c in ("[]", ("{'a':", "}"), ('{"a":', "}")))
    yield from ('{"root":"dict","leaves":' + "[" * 10_000 + "]" * 10_000 + "}", "\0", "[" * 2**20, '"' + "x" * 2**20)
    yield '{"root":"dict","leaves":[' + ",".join(["[" + leaf % 1 + "]"] * 20_000) + "]}"
    yield json.dumps({"root": "dict", "leaves": [[["x"], "numpy", "|O", []]]}, separators=(",", ":"))


def main(seed):
    """One line of JSON."""
    outcomes, slowest, wrong = {"refused": 0, "read": 0}, 0.0, []

    def attempt(index, decode, *arguments):
        nonlocal slowest
        started = time.process_time()
        try:
            decode(*arguments)
            outcomes["read"] += 1
        except RecordDecodeError as error:
            outcomes["refused"] += 1
            if error.index != index or f" {index} " not in f" {error} ".replace(":", " "):
                wrong.append(str(error)[:200])
        except Exception as error:  # the point of it all
            wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
        slowest = max(slowest, time.process_time() - started)

    for record in RECORDS.values():
        decode_record(*bytes_of(record), 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for record in RECORDS.values():
        schema, good = bytes_of(record)
        for payload in hostile(record, seed):
            attempt(7, decode_record, schema, payload, 7)
            attempt(7, decode_batch, schema, [good, payload, good], [6, 7, 8])
            decode_record(schema, good, 8)  # the next record can be read
    for text in schemas():
        attempt(0, Schema.from_text, text)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    print(json.dumps({**outcomes, "slowest_s": slowest, "grown_bytes": grown * unit, "wrong": wrong[:5]}))


if __name__ == "__main__":
    main(sys.argv[1])
