"""One upstream call: the row is opened, the call made, its answer read or relayed, the row closed. Exactly once each.

Knows how an answer becomes a reply or an error of ours; not why it was asked for, nor what happens next (`gateway`,
`core.exchange`). Nothing is said to the client before the first frame with content, so that what fails earlier can be
cured or told with its true status.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from proxy.core import overflow
from proxy.core.errors import ClientLeft, InvalidReply, Overflow, TooLong, UpstreamError, WeirgateError
from proxy.core.events import Broke, Ended, Remark
from proxy.core.measure import MESSAGE_OVERHEAD
from proxy.core.policy import ModelCard
from proxy.core.relay import Relay
from proxy.core.steps import Call, Prompt, Reply, Report
from proxy.core.usage import Status, Usage, UsageRow, closed
from proxy.dialects.chat.reply import Frames, done_frame, is_error, read_answer
from proxy.dialects.normalise import Normaliser
from proxy.dialects.sse import LineTooLong, SseEvent, SseReader, comment, frame
from proxy.refusals import provider_words, refusal
from proxy.upstream import Request, Response, Upstream

_UNFIT: Final = re.compile(r"[^A-Za-z0-9._:/@+-]")
"""What a model's name, which a client may have made up, cannot bring into a header."""
_LONGEST_NAME: Final = 128


class Client(Protocol):
    """Who waits for the answer; the server's side of one call."""

    @property
    def begun(self) -> bool:
        """Whether the head of a stream has gone out."""

    def tell(self, report: Report) -> None:
        """What the head will say of the prompt, if it has not gone out yet."""

    async def write(self, data: bytes) -> None:
        """Send a part of the stream, its head first. Waits while the client reads slowly."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where this call goes: the upstream, the model's card there, and whose key opens it."""

    upstream: Upstream
    card: ModelCard
    normalise: bool = False
    own_key: bool = True
    line_limit: int = 1 << 20


class Attempt:
    """One upstream call. `body` (JSON) or `rest` (the held end of a stream) is what the client still gets."""

    def __init__(
        self, *, call: Call, prompt: Prompt, target: Target, row: UsageRow, client: Client, clock: Callable[[], float]
    ) -> None:
        self._call = call
        self._prompt = prompt
        self._target = target
        self._client = client
        self._clock = clock
        self._began = 0.0
        self._first: float | None = None
        self._asked = False
        self._response: Response | None = None
        self._relay = Relay(include_usage=call.include_usage)
        self._reply: Reply | None = None
        self._ended = False
        # A head that has gone says nothing of this prompt: a call before it overflowed, or a summary took long.
        self._untold = client.begun
        self.row = row
        self.body = b""
        self.rest: tuple[bytes, ...] = ()

    @property
    def said(self) -> bool:
        """Whether the client has seen content of this answer."""
        return self._relay.said

    async def run(self, request: Request, opened: Callable[[], Awaitable[None]]) -> Reply:
        """Make the call, once the row is `opened`. Raises TooLong, another UpstreamError, or what cancelled it; `row`
        is closed then too."""
        self._began = self._clock()
        try:
            await opened()
            self._asked = True
            self._response = response = await self._target.upstream.send(request)
            if response.status != 200:
                raise self._refusal(response, await response.read())
            reply = await (self._streamed(response) if self._call.stream else self._whole(response))
        except WeirgateError as error:
            self._close("partial" if self.said else "failed", error=error.code, http=_status_of(error, self._response))
            raise
        except (asyncio.CancelledError, ClientLeft):
            self._close("cancelled", http=self._response.status if self._response else None)
            raise
        except BaseException:
            self._close("failed", error="internal_error")
            raise
        else:
            self._close("ok", http=200)
            return reply
        finally:
            if self._response is not None:
                if self._ended:
                    # The end mark has come, the end of the body may not: the connection is worth a moment's patience.
                    self._response.leave()
                else:
                    await self._response.close()

    async def _whole(self, response: Response) -> Reply:
        body = await response.read()
        self._first = self._clock() - self._began
        if self._target.normalise:
            body = self._normaliser().reply(body)
        try:
            reply = read_answer(body)
        except InvalidReply:
            self._check_elsewhere(body)
            raise
        if isinstance(reply, Broke):
            raise self._broken(reply)
        self._reply = reply
        self._check_finish(reply)
        self.body = body
        return reply

    async def _streamed(self, response: Response) -> Reply:
        kind = response.headers.get("content-type", "text/event-stream")
        if "event-stream" not in kind:
            body = await response.read()
            if is_error(body):
                raise self._broken(Broke(status=200, body=body))
            self._check_elsewhere(body)
            raise InvalidReply("The upstream answered a streaming request with something else.")
        reader = SseReader(self._target.line_limit)
        frames = Frames(self._target.card.name)
        normaliser = self._normaliser() if self._target.normalise else None
        waiting: list[bytes] = []
        ended = False
        try:
            async for chunk in response.chunks():
                try:
                    ended = self._take(reader.feed(chunk), frames, normaliser, waiting)
                finally:
                    # What came before an error in the same piece was said, and counts as said.
                    await self._give(waiting)
                if ended:
                    break
            if not ended:
                self._take(reader.finish(), frames, normaliser, waiting)
        except LineTooLong:
            raise InvalidReply("A line of the upstream's stream exceeds the limit.") from None
        if not ended and normaliser is not None:
            self._take([SseEvent(raw=frame(data), data=data) for data in normaliser.finish()], frames, None, waiting)
        reply = await self._finish(frames, waiting)
        self._ended = ended
        return reply

    def _take(
        self, events: list[SseEvent], frames: Frames, normaliser: Normaliser | None, waiting: list[bytes]
    ) -> bool:
        """Read frames into what the client may see; True at the stream's end mark."""
        for event in events:
            if normaliser is not None and event.data is not None:
                made = normaliser.finish() if event.data == b"[DONE]" else normaliser.frame(event.data)
                same = len(made) == 1 and made[0] == event.data
                plain = [event] if same else [SseEvent(raw=frame(data), data=data) for data in made]
                self._take(plain, frames, None, waiting)
                if event.data == b"[DONE]":
                    return True
                continue
            heard = frames.read(event)
            if type(heard) is Ended:
                return True
            if type(heard) is Broke:
                raise self._broken(heard)
            if type(heard) is Remark and not event.raw.startswith(b":"):
                self._check_elsewhere(event.data or event.raw)
            for shown in self._relay.feed(heard):
                waiting.append(frames.write(shown))
        return False

    async def _give(self, waiting: list[bytes]) -> None:
        if not waiting or not self._relay.said:
            return
        if self._first is None:
            self._first = self._clock() - self._began
        data = b"".join(waiting)
        waiting.clear()
        await self._client.write(data)

    async def _finish(self, frames: Frames, waiting: list[bytes]) -> Reply:
        if not self._relay.complete:
            raise InvalidReply("The upstream's stream broke off before it finished.")
        await self._give(waiting)
        reply = self._relay.reply()
        if not self._relay.said:
            self._check_finish(reply)
        held = [frames.write(event) for event in self._relay.end()]
        report = self._prompt.report
        late = self._untold and report.compaction != "none"
        told = [comment(f"weirgate {context(report)}")] if late else []
        self.rest = (*waiting, *held, *told, done_frame())
        return reply

    def _normaliser(self) -> Normaliser:
        """Its frames get an id and a time of ours where the upstream gives none."""
        created = int(self.row.opened_at)
        return Normaliser(id=f"chatcmpl-{self.row.id}", created=created, model=self._target.card.name)

    def _check_finish(self, reply: Reply) -> None:
        """An answer that ended because the window was full, with nothing to show, is an overflow."""
        if reply.message is not None and (reply.message.text or reply.message.calls):
            return
        found = overflow.recognise_finish(reply.finish, reply.usage, self._prompt.report.window)
        if found is not None:
            raise TooLong(found, upstream_status=200)

    def _check_elsewhere(self, told: bytes) -> None:
        """An overflow also comes with status 200 in another API's shape (`response.failed`, `validationException`), or
        in a line of a stream that is no data line (llama.cpp's `error: {...}`)."""
        found = self._overflow(200, told)
        if found is not None:
            raise TooLong(found, said=self.said, upstream_status=200) from None

    def _broken(self, broke: Broke) -> WeirgateError:
        """An error that came with status 200: inside a stream, or as a body."""
        found = self._overflow(broke.status, broke.body)
        if found is not None:
            return TooLong(found, said=self.said, upstream_status=broke.status)
        if self.said or broke.status == 200:
            return InvalidReply(f"The upstream reported an error instead of going on: {provider_words(broke.body)}")
        return refusal(broke.status, broke.body, own_key=self._target.own_key)

    def _refusal(self, response: Response, body: bytes) -> WeirgateError:
        found = self._overflow(response.status, body)
        if found is not None:
            return TooLong(found, upstream_status=response.status)
        wait = response.headers.get("retry-after")
        return refusal(response.status, body, own_key=self._target.own_key, retry_after=wait)

    def _overflow(self, status: int, body: bytes) -> Overflow | None:
        report = self._prompt.report
        return overflow.recognise(status, body, projected=report.tokens or None, window=report.window)

    def _close(self, status: Status, *, error: str | None = None, http: int | None = None) -> None:
        """Close the row. Where the provider reported no usage, our own measure stands in, and says so."""
        reply = self._reply or self._relay.reply()
        usage = reply.usage
        if usage is None:
            # Whoever leaves before the head leaves a provider that may have read all of it, and bills for that.
            worked = self._asked and status != "failed"
            written = reply.message.tokens - MESSAGE_OVERHEAD if reply.message is not None else 0
            usage = Usage(input=self._prompt.report.tokens if worked else 0, output=written, estimated=True)
        self.row = closed(
            self.row,
            status,
            usage,
            self._target.card.tariff,
            duration=self._clock() - self._began,
            first_token=self._first,
            http_status=http,
            error=error,
            finish=reply.finish,
        )


def context(report: Report) -> str:
    """The value of `x-weirgate-context`."""
    window = "unknown" if report.window is None else str(report.window)
    text = f"tokens={report.tokens}; window={window}; compaction={report.compaction}"
    if report.writer is not None:
        text += f"; notes={_UNFIT.sub('_', report.writer)[:_LONGEST_NAME]}"
    return f"{text}; paused={report.stopped}" if report.stopped else text


def _status_of(error: WeirgateError, response: Response | None) -> int | None:
    if isinstance(error, UpstreamError) and error.upstream_status is not None:
        return error.upstream_status
    return response.status if response is not None else None
