"""What one client is shown of an answer, however many upstream calls it takes: frames waiting, given, and the end.

Joins the pure parts (`core.relay` decides, the dialect writes) to the client. One per call of a client; each attempt
reads into it. Nothing is given before the first content of a round, so that what fails earlier can be cured.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final, Protocol

from proxy.core.events import Event, Said
from proxy.core.pauses import Pause
from proxy.core.relay import Relay
from proxy.core.steps import Outcome, Prompt, Reply, Report
from proxy.dialects.chat.reply import Frames, done_frame, joined_answer
from proxy.dialects.sse import SseEvent, comment

_UNFIT: Final = re.compile(r"[^A-Za-z0-9._:/@+-]")
"""What a model's name, which a client may have made up, cannot bring into a header."""
_LONGEST_NAME: Final = 128
_NOTHING: Final = Reply(message=None, finish=None, usage=None)


class Client(Protocol):
    """Who waits for the answer; the server's side of one call."""

    @property
    def begun(self) -> bool:
        """Whether the head of a stream has gone out."""

    def tell(self, report: Report) -> None:
        """What the head will say of the prompt, if it has not gone out yet."""

    def write(self, data: bytes) -> Awaitable[None]:
        """Send a part of the stream, its head first. DONE where it has been sent; else it is, once this is awaited:
        while the client reads slowly."""


class Whole:
    """An answer in one piece: nothing of it is shown before its end."""

    __slots__ = ("body", "client")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.body = b""
        """The JSON body of the last round."""

    @property
    def said(self) -> bool:
        """Whether the client has been given content of this round."""
        return False

    def reply(self) -> Reply:
        """The answer of this round, as far as it was read."""
        return _NOTHING

    def spoken(self) -> Reply:
        """What was shown of the answer so far, of all its rounds."""
        return _NOTHING

    def whole(self, outcome: Outcome) -> bytes:
        """The JSON body: the upstream's own, or where our tools were called one message of all rounds."""
        if not outcome.joined or outcome.reply is None:
            return self.body
        return joined_answer(self.body, outcome.reply, outcome.rounds, outcome.read, outcome.pause)


class Showing(Whole):
    """A stream on its way to `client`; `model` is the name that frames bear."""

    __slots__ = ("_begun", "_earlier", "_frames", "_given", "_model", "_relay", "_told", "_waiting", "_written")

    def __init__(self, client: Client, model: str, *, include_usage: bool) -> None:
        super().__init__(client)
        self._model = model
        self._relay = Relay(include_usage=include_usage)
        self._frames = Frames(model)
        self._waiting: list[bytes] = []
        self._earlier: list[bytes] = []
        self._told: tuple[bytes, ...] = ()
        self._given = self._begun = self._written = False

    @property
    def said(self) -> bool:
        """Whether the client has been given content of this round."""
        return self._relay.said

    @property
    def complete(self) -> bool:
        return self._relay.complete

    def reply(self) -> Reply:
        """The answer of this round, as far as it was read."""
        return self._relay.reply()

    def spoken(self) -> Reply:
        """What was shown of the answer so far, of all its rounds."""
        return self._relay.spoken()

    def read(self, event: SseEvent) -> Event:
        """What a frame says. Raises InvalidReply."""
        return self._frames.read(event)

    def feed(self, heard: Event) -> None:
        """Take in what was said."""
        shown = self._relay.feed(heard)
        if not shown and not self._given and type(heard) is Said and heard.calls and heard.finish is None:
            self._frames.owe_role()
        for event in shown:
            self._waiting.append(self._frames.write(event) if self._given else self._first(event))

    def _first(self, event: Event) -> bytes:
        """The bytes of an event before which none with a choice was given: the first of those says whose message it
        begins, also where it is made of one of which a part was held back."""
        self._given = type(event) is Said
        if type(event) is Said and event.raw is None:
            self._frames.owe_role()
        return self._frames.write(event)

    def due(self) -> bytes:
        """What the client is to be given now: all that waits, once there is content in it."""
        return self._taken() if self._waiting and self._relay.said else b""

    async def begin(self, prompt: Prompt, *, next_round: bool = False) -> None:
        """An attempt begins: what it says is shown behind what was shown (`next_round`: our tools have answered), else
        in place of an attempt that failed before anything of it was shown."""
        # A head that has gone says nothing of this prompt: a call before it overflowed, or a summary took long.
        late = self.client.begun and prompt.report.compaction != "none"
        self._told = (comment(f"weirgate {context(prompt.report)}"),) if late else ()
        self._relay.own = prompt.own
        if next_round:
            await self._go_on()
            return
        self._relay.again()
        # What earlier rounds left waiting (a role, at most) still stands before all that follows.
        self._waiting = [*self._earlier]
        self._given = self._written or bool(self._waiting)
        if not self._begun:
            self._frames = Frames(self._model)

    async def _go_on(self) -> None:
        last = self._relay.next_round()
        self._waiting += [self._frames.write(event) if self._given else self._first(event) for event in last]
        if last:
            await self.client.write(self._taken())
        if not self._given:
            self._frames.owe_role()
        self._earlier = [*self._waiting]
        self._begun = True
        self._frames.next_round()

    def _taken(self) -> bytes:
        self._begun = self._written = True
        data = b"".join(self._waiting)
        self._waiting, self._earlier = [], []
        return data

    def end(self, pause: Pause | None = None) -> tuple[bytes, ...]:
        """What is left of the stream, its end mark last; before the finish what the user is asked by `pause`."""
        held = [self._frames.write(event) if self._given else self._first(event) for event in self._relay.end(pause)]
        return (*self._waiting, *held, *self._told, done_frame())


def context(report: Report) -> str:
    """The value of `x-weirgate-context`."""
    window = "unknown" if report.window is None else str(report.window)
    text = f"tokens={report.tokens}; window={window}; compaction={report.compaction}"
    if report.writer is not None:
        text += f"; notes={_UNFIT.sub('_', report.writer)[:_LONGEST_NAME]}"
    return f"{text}; paused={report.stopped}" if report.stopped else text
