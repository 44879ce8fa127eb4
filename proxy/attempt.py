"""One upstream call: the row is opened, the call made, its answer read or relayed, the row closed. Exactly once each.

Knows how an answer becomes a reply or an error of ours; not why it was asked for, nor what happens next (`gateway`,
`core.exchange`), nor what of it a client is shown (`showing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from proxy.core import overflow
from proxy.core.done import DONE
from proxy.core.errors import ClientLeft, InvalidReply, Overflow, TooLong, UpstreamError, WeirgateError
from proxy.core.events import Broke, Ended, Remark
from proxy.core.measure import block_tokens
from proxy.core.policy import Mode, ModelCard, Policy
from proxy.core.steps import Call, Prompt, Reply, Report
from proxy.core.usage import Purpose, Status, Usage, UsageRow, closed
from proxy.dialects.chat.reply import is_error, read_answer
from proxy.dialects.normalise import Normaliser
from proxy.dialects.sse import LineTooLong, SseEvent, SseReader, frame
from proxy.health import UpstreamHealth
from proxy.refusals import provider_words, refusal
from proxy.showing import Showing, Whole
from proxy.upstream import Request, Response, Upstream


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where this call goes: the upstream, the model's card there, whose key opens it, and how it has done of late."""

    upstream: Upstream
    card: ModelCard
    normalise: bool = False
    own_key: bool = True
    line_limit: int = 1 << 20
    health: UpstreamHealth | None = None


def opening(
    call: Call,
    target: Target,
    policy: Policy,
    report: Report,
    purpose: Purpose,
    parent: str | None,
    request: str,
    mode: Mode,
    id: str,
    at: float,
) -> UsageRow:
    """The open row of an upstream call that serves `call`, made at `at` (unix seconds) with a prompt that `report` is
    of. Its arguments stand in a row: it is made for every call, and names cost as much as half of it."""
    caller = call.caller
    # In two steps: a call with more than fifteen keywords makes a dictionary of them.
    row = UsageRow(
        id=id,
        request=request,
        parent=parent,
        purpose=purpose,
        tenant=caller.tenant,
        key=caller.key,
        end_user=caller.end_user,
        conversation=report.conversation,
        upstream=target.upstream.name,
        asked_model=call.model,
        model=target.card.name,
        stream=call.stream,
        opened_at=at,
        policy=policy.name,
        policy_hash=policy.hash,
    )
    return msgspec.structs.replace(
        row,
        projected=report.tokens or None,
        window=report.window,
        compaction=report.compaction,
        compaction_id=report.compaction_id,
        notes_by=report.writer,
        paused=report.stopped or None,
        repaired=report.repaired,
        mode=str(mode),
    )


class Attempt:
    """One upstream call, read into `showing`."""

    __slots__ = (
        "_asked",
        "_call",
        "_clock",
        "_ended",
        "_first",
        "_prompt",
        "_reply",
        "_response",
        "_showing",
        "_target",
        "began",
        "row",
    )

    def __init__(
        self, *, call: Call, prompt: Prompt, target: Target, row: UsageRow, showing: Whole, clock: Callable[[], float]
    ) -> None:
        self._call = call
        self._prompt = prompt
        self._target = target
        self._showing = showing
        self._clock = clock
        self.began = 0.0
        """When `run` was entered, on `clock`."""
        self._first: float | None = None
        self._asked = False
        self._response: Response | None = None
        self._reply: Reply | None = None
        self._ended = False
        self.row = row

    @property
    def said(self) -> bool:
        """Whether the client has seen content of this answer."""
        return self._showing.said

    async def run(self, request: Request, opened: Callable[[], Awaitable[None]] | None) -> Reply:
        """Make the call, once the row is `opened` where that is waited for. Raises TooLong, another UpstreamError, or
        what cancelled it; `row` is closed then too."""
        self.began = self._clock()
        try:
            if opened is not None:
                await opened()
            self._asked = True
            self._response = response = await self._target.upstream.send(request)
            if (health := self._target.health) is not None and health.doubted:
                health.heard(self.began, response.status)
            if response.status != 200:
                raise self._refusal(response, await response.read())
            shown = self._showing
            reply = await (self._streamed(response, shown) if isinstance(shown, Showing) else self._whole(response))
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
        self._first = self._clock() - self.began
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
        self._showing.body = body
        return reply

    async def _streamed(self, response: Response, showing: Showing) -> Reply:
        kind = response.headers.get("content-type", "text/event-stream")
        if "event-stream" not in kind:
            body = await response.read()
            if is_error(body):
                raise self._broken(Broke(status=200, body=body))
            self._check_elsewhere(body)
            raise InvalidReply("The upstream answered a streaming request with something else.")
        reader = SseReader(self._target.line_limit)
        normaliser = self._normaliser() if self._target.normalise else None
        ended = over = False
        written = DONE

        def take(chunk: bytes) -> bool:
            """Called as chunks come. A client that must be waited for has taken enough."""
            nonlocal ended, written
            try:
                ended = self._take(showing, reader.feed(chunk), normaliser)
            finally:
                # What came before an error in the same piece was said, and counts as said.
                written = self._give(showing)
            return ended or written is not DONE

        try:
            while not (ended or over):
                try:
                    over = await response.pour(take)
                except Exception:
                    await written
                    raise
                await written
                written = DONE
            if not ended:
                self._take(showing, reader.finish(), normaliser)
        except LineTooLong:
            raise InvalidReply("A line of the upstream's stream exceeds the limit.") from None
        if not ended and normaliser is not None:
            self._take(showing, [SseEvent(raw=frame(data), data=data) for data in normaliser.finish()], None)
        reply = await self._finish(showing)
        self._ended = ended
        return reply

    def _take(self, showing: Showing, events: list[SseEvent], normaliser: Normaliser | None) -> bool:
        """Read frames into what the client may see; True at the stream's end mark."""
        for event in events:
            if normaliser is not None and event.data is not None:
                made = normaliser.finish() if event.data == b"[DONE]" else normaliser.frame(event.data)
                same = len(made) == 1 and made[0] == event.data
                plain = [event] if same else [SseEvent(raw=frame(data), data=data) for data in made]
                self._take(showing, plain, None)
                if event.data == b"[DONE]":
                    return True
                continue
            heard = showing.read(event)
            if type(heard) is Ended:
                return True
            if type(heard) is Broke:
                raise self._broken(heard)
            if type(heard) is Remark and not event.raw.startswith(b":"):
                self._check_elsewhere(event.data or event.raw)
            showing.feed(heard)
        return False

    def _give(self, showing: Showing) -> Awaitable[None]:
        """Write what is due to the client, as `Client.write` does."""
        data = showing.due()
        if not data:
            return DONE
        if self._first is None:
            self._first = self._clock() - self.began
        return showing.client.write(data)

    async def _finish(self, showing: Showing) -> Reply:
        if not showing.complete:
            raise InvalidReply("The upstream's stream broke off before it finished.")
        await self._give(showing)
        reply = showing.reply()
        if not showing.said:
            self._check_finish(reply)
        return reply

    def _normaliser(self) -> Normaliser:
        """Its frames get an id and a time of ours where the upstream gives none."""
        created = int(self.row.opened_at)
        return Normaliser(id=f"chatcmpl-{self.row.id}", created=created, model=self._target.card.name)

    def _check_finish(self, reply: Reply) -> None:
        """An answer that ended because the window was full, with nothing to show, is an overflow."""
        if reply.message is not None and not reply.message.empty:
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
        reply = self._reply or self._showing.reply()
        usage = reply.usage
        if usage is None:
            # Whoever leaves before the head leaves a provider that may have read all of it, and bills for that.
            worked = self._asked and status != "failed"
            written = sum(map(block_tokens, reply.message.blocks)) if reply.message is not None else 0
            usage = Usage(input=self._prompt.report.tokens if worked else 0, output=written, estimated=True)
        self.row = closed(
            self.row,
            status,
            usage,
            self._target.card.tariff,
            duration=self._clock() - self.began,
            first_token=self._first,
            http_status=http,
            error=error,
            finish=reply.finish,
        )
        if (health := self._target.health) is not None:
            health.ended(self.began, self.row)


def _status_of(error: WeirgateError, response: Response | None) -> int | None:
    if isinstance(error, UpstreamError) and error.upstream_status is not None:
        return error.upstream_status
    return response.status if response is not None else None
