"""The root of every error, which carries its data as attributes and makes its text of them."""

from typing import Any, Self

from redis_replay._briefly import fill, portable


def _rebuild(kind: "type[ReplayError]", data: dict[str, Any], more: dict[str, Any]) -> "ReplayError":
    error = kind(**data)
    error.__dict__.update(more)
    return error


def _elsewhere(leased: int | None, hidden: int | None) -> str:
    lent = f"; {leased} more are lent to readers, and can be drawn once they come back" if leased else ""
    return lent + (f"; {hidden} more have priority 0, and are hidden" if hidden else "")


_OF_THE_CALL = ("_data", "question", "ask")


class ReplayError(Exception):
    """Root of the tree. `text` is the message, filled in from the keyword arguments, which become attributes."""

    text = "{reason}"
    done: int  # records (of ack and release: leases) that a call in steps had handled before this error; set only there

    def __init__(self, **data: Any) -> None:
        self.__dict__.update(data)
        self._data = data
        super().__init__(self._message(**data))

    def _message(self, **data: Any) -> str:
        text = fill(self.text, data)
        if data.get("side") != "insert":
            text += _elsewhere(data.get("leased"), data.get("hidden"))
        return f"{text}; {limiter}" if (limiter := data.get("limiter")) else text

    def restate(self, **data: Any) -> Self:
        """The same error with other data."""
        self._data = self._data | data
        self.__dict__.update(data)
        self.args = (self._message(**self._data),)
        return self

    def _more(self) -> dict[str, Any]:
        """What was set on it since: `done`, notes. Not what belongs to the call that raised it."""
        own = {*self._data, *_OF_THE_CALL}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {name: portable(value) for name, value in self._data.items()}, self._more())

    def __copy__(self) -> "ReplayError":
        return _rebuild(type(self), self._data, self._more())

    def __deepcopy__(self, _: Any) -> "ReplayError":
        return self.__copy__()
