"""The command `redis-replay`: `demo`, `serve`, `stats`, `doctor`, `dump`, `load`, `import`, `export`, `delete`, `bench`.

It needs click and rich, the extra `cli`; this module needs neither, so that it can say so.
"""

import sys
from collections.abc import Sequence

_EXTRA = ("click", "rich")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line `args`, or that of the process, and exit with its code."""
    try:
        from redis_replay._commands import commands

        commands(args, prog_name="redis-replay")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        sys.exit(f"redis-replay: its command line needs {missing}: pip install 'redis-replay[cli]'")


if __name__ == "__main__":
    main()
