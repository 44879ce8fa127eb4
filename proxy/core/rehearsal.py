"""A flow of the core played without a trace: nothing is claimed, asked of a model, sent or stored.

Belongs here: the answers to all steps that would change something. What is left to ask is what only the world can tell:
what the store knows (`Recall`) and how large something is (`Count`). So whoever explains or tries a call cannot forget
to leave something undone. Never: a decision about the call; those are the flow's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, assert_never

from proxy.core.errors import Internal, TimedOut, WeirgateError
from proxy.core.notes import Compaction
from proxy.core.steps import Claim, Count, Flow, Interjected, Recall, Remember, RunTools, Send, Step, Summarise

T = TypeVar("T")


class Rehearsal:
    """One play. `made` is the compaction that would have been stored, `asked` the models that would have been asked for
    its narrative, each once, in the order of the chain: here none of them answers."""

    def __init__(self) -> None:
        self.made: Compaction | None = None
        self.asked: tuple[str, ...] = ()

    def of(self, flow: Flow[T]) -> Flow[T]:
        """What `flow` returns, asking for nothing but Recall and Count. Raises what it raises, and Internal where it
        wants to send: it must end before that."""
        resume: Callable[[Any], Step] = flow.send
        given: Any = None
        try:
            while True:
                step = resume(given)
                resume, given = flow.send, None
                match step:
                    case Recall() | Count():
                        try:
                            given = yield step
                        except WeirgateError as error:
                            resume, given = flow.throw, error
                    case Claim():
                        given = True
                    case Remember():
                        self.made = step.compaction or self.made
                    case Summarise():
                        self.asked += (step.summariser.name,)
                        # Not worth a second try: so each model of the chain is named, and none twice.
                        resume, given = flow.throw, TimedOut("Nobody is asked in a rehearsal.")
                    case Send() | RunTools() | Interjected():
                        raise Internal("A rehearsal has come too far.")
                    case _:
                        assert_never(step)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()
