"""What a script's refusal means: word to exception, where the word and its data say it all."""

from collections.abc import Callable

from redis_replay import exceptions as e

Data = list[str]

# What every script may answer, and what only some do; a test holds the words against the headers in lua/.
_ERRORS: dict[str, Callable[[str, Data], e.ReplayError]] = {
    "GONE": lambda name, d: e.BufferGoneError(name=name),
    "STALE": lambda name, d: e.ProtocolError(verb="request", reply="STALE"),
    "FULL": lambda name, d: e.BufferFullError(name=name, capacity=int(d[0])),
    "SHUT": lambda name, d: e.BufferShutDownError(name=name),
    "NOT_FOUND": lambda name, d: e.BufferNotFoundError(name=name),
    "NOT_READY": lambda name, d: e.NotReadyError(name=name, have=int(d[0]), need=int(d[1])),
    "LIMIT": lambda name, d: e.LimitError(name=name, what=d[0], value=int(d[1]), n=int(d[2]), limit=int(d[3])),
    "DAMAGED": lambda name, d: e.BufferDamagedError(
        name=name, key=d[0], found=d[1].replace("_", " "), expected=d[2].replace("_", " ")
    ),
    "LOWER": lambda name, d: e.ArgumentError(
        name="version", allowed=f"at least {int(d[0])}, the version of buffer {name!r}, which never falls", found=int(d[1])
    ),
    "TOO_LARGE": lambda name, d: e.ArgumentError(
        name="batch_size",
        allowed=f"such that a batch stays within {int(d[2]):,} bytes (a record has {int(d[1]):,})",
        found=int(d[0]),
    ),
}

# Words that are answers, or that the operations act on themselves.
ANSWERS = frozenset(
    {
        "OK",
        "OPEN",
        "CLOSED",
        "READY",
        "FORGOTTEN",
        "LAPSED",
        "MORE",
        "NO_SCHEMA",
        "SCHEMA",
        "MISMATCH",
        "FORMAT",
        "REWOUND",
        "RUNNING",
        "MOVED",
    }
)


def words() -> frozenset[str]:
    """Every word that this version knows."""
    return ANSWERS | frozenset(_ERRORS)


def error(verb: str, word: str, name: str, data: Data) -> e.ReplayError:
    """The exception for a refusal of the script `verb`."""
    make = _ERRORS.get(word)
    try:
        if make is not None:
            return make(name, data)
    except (IndexError, ValueError):  # words that no script of this version puts behind it
        pass
    return e.ProtocolError(verb=verb, reply=[word, *data])
