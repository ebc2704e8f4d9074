"""What is said where a module is imported whose libraries an extra brings."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, module: str) -> Iterator[None]:
    """Around the imports of `module`, which needs the extra of this name.

    Raises:
        ModuleNotFoundError: one of the libraries is not there; its text names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("redis_replay"):
            raise
        missing = error.name.partition(".")[0]
        text = f"{module} needs {missing}: pip install 'redis-replay[{name}]'"
        raise ModuleNotFoundError(text, name=missing) from error
