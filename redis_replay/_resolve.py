"""What an OutcomeUnknownError asks when it is told to resolve(): the handle whose call it was."""

from functools import partial
from typing import Any

from redis_replay import _requests as rq
from redis_replay._core import CALL_SECONDS, Core, Question
from redis_replay._types import Outcome
from redis_replay.exceptions import BufferClosedError, OutcomeLostError, OutcomeUnknownError


def attach(runtime: Any, error: BaseException) -> None:
    """Lets a Runtime's error ask."""
    if isinstance(error, OutcomeUnknownError):
        error.ask = partial(_ask, runtime, error.question)


def attach_async(runtime: Any, error: BaseException) -> None:
    """Lets an AsyncRuntime's error ask."""
    if isinstance(error, OutcomeUnknownError):
        error.ask = partial(_ask_async, runtime, error.question)


def _ask(runtime: Any, question: Question) -> Outcome:
    if not question.closed:
        _check(runtime.core, question, foreign=runtime.foreign)
        runtime.drive(rq.learn(runtime.core, question, runtime.core.clock() + runtime.core.bound(CALL_SECONDS)))
    return _answer(runtime.core, question)


async def _ask_async(runtime: Any, question: Question) -> Outcome:
    if not question.closed:
        _check(runtime.core, question, foreign=runtime.foreign)
        await runtime.drive(rq.learn(runtime.core, question, runtime.core.clock() + runtime.core.bound(CALL_SECONDS)))
    return _answer(runtime.core, question)


def _check(core: Core, question: Question, *, foreign: bool) -> None:
    if foreign:
        why = "only the process and the event loop that made the call can ask"
        raise OutcomeLostError(name=core.name, verb=question.call or question.verb, reason=why)
    if core.closed:
        raise BufferClosedError(name=core.name)


def _answer(core: Core, question: Question) -> Outcome:
    if question.answer is None:
        why = f"the server does not know lane {question.lane} any more"
        raise OutcomeLostError(name=core.name, verb=question.call or question.verb, reason=why)
    return question.answer
