"""Interrupts at each point where Python lets a signal's handler run: after each call, and where a function begins."""

import dis
import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Interrupt(BaseException):
    """What the handler raises."""


@functools.cache
def _points(code: CodeType) -> frozenset[int]:
    """Where, in a function, the interpreter looks for signals: behind each call, and where it begins or goes on."""
    steps = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    behind = {step.offset for before, step in itertools.pairwise(steps) if before.opname.startswith("CALL")}
    return frozenset(behind | {step.offset for step in steps if step.opname == "RESUME"})


class At:
    """Runs a call and raises at its n-th point. `raised`: where; None: it has fewer points."""

    def __init__(self, n: int, kind: type[BaseException] = Interrupt) -> None:
        self._left = n
        self._kind = kind
        self.raised: str | None = None

    def run(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the call gave; None where the interrupt ended it."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call(*args, **kwargs)
        except self._kind:
            return None
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if self.raised:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and self.raised is None and frame.f_lasti in _points(frame.f_code):
            self._left -= 1
            if self._left < 0:
                self.raised = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
                raise self._kind
        return self._step
