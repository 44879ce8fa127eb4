"""What of a stream the client may see: one message with one end, however many rounds it took.

Fed event by event. Text goes out at once; calls of the gateway's own tools are held back, and so is the finish of a
round that called nothing else, for another round follows. The last finish and the usage are held until the exchange
has stored what it must, and are given out by `end`. A stream is whole only if every choice finished. What is shown of
all rounds is `hidden.shown` of their replies.
"""

from __future__ import annotations

import msgspec

from proxy.core.chain import message
from proxy.core.conversation import Block, Message, Reasoning, Text, ToolCall
from proxy.core.events import CallDelta, Counted, Event, Remark, Said
from proxy.core.hidden import BETWEEN
from proxy.core.hidden import shown as shown_of
from proxy.core.pauses import Pause
from proxy.core.pauses import shown as shown_to_user
from proxy.core.steps import Reply
from proxy.core.usage import Usage


class Relay:
    """One answer while it streams. `own` are the names of the gateway's tools offered in this call."""

    def __init__(self, *, include_usage: bool, own: frozenset[str] = frozenset()) -> None:
        self._include_usage = include_usage
        self.own = own
        self._held: list[Said | Counted] = []
        self._before = Usage()
        self._shown_calls = 0
        self._rounds = 0
        self._replies: list[Message | None] = []
        self._texted = False
        self._begin()

    def _begin(self) -> None:
        self.said = False
        """Whether the client has been given content of this round."""
        self._apart = self._texted
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, CallDelta] = {}
        self._arguments: dict[int, list[str]] = {}
        self._places: dict[int, int] = {}
        self._unnamed: set[int] = set()
        self._finishes: dict[int, str] = {}
        self._choices: set[int] = set()
        self.usage: Usage | None = None

    @property
    def finish(self) -> str | None:
        """How the first choice ended; None while it has not."""
        return self._finishes.get(0)

    @property
    def complete(self) -> bool:
        """Whether there was a choice and every choice ended."""
        return bool(self._choices) and self._choices == set(self._finishes)

    def feed(self, event: Event) -> tuple[Event, ...]:
        """The events that go to the client now."""
        if type(event) is Counted:
            self.usage = event.usage
            self._held.append(event)
            return ()
        if type(event) is not Said:
            return (event,) if type(event) is Remark and event.told and not self._rounds else ()
        self._note(event)
        if event.finish is not None and all(finish is not None for _, finish in event.others):
            self._held.append(event)
            return ()
        return self._visible(event)

    def again(self) -> None:
        """This round failed before anything of it was shown, and is asked for once more."""
        self._held.clear()
        self._begin()

    def next_round(self) -> tuple[Event, ...]:
        """This round called only our tools: forget its end, keep its usage for the sum. Returns what its last frames
        said besides."""
        self._replies.append(self.reply().message)
        said = self._ends()
        used = self.usage or Usage()
        self._before = Usage(
            input=self._before.input + used.input,
            output=self._before.output + used.output,
            reasoning=self._before.reasoning + used.reasoning,
        )
        self._shown_calls += len([call for call in self._calls.values() if call.name not in self.own])
        self._held.clear()
        self._rounds += 1
        self._begin()
        return said

    def _ends(self) -> tuple[Said, ...]:
        """What the frames that are held say besides; from here on they say nothing else."""
        ends = [event for event in self._held if isinstance(event, Said)]
        said = [event for end in ends for event in self._visible(msgspec.structs.replace(end, raw=None, finish=None))]
        self._held = [
            msgspec.structs.replace(event, raw=None, text="", reasoning="", calls=())
            if isinstance(event, Said)
            else event
            for event in self._held
        ]
        return tuple([event for event in said if event.text or event.reasoning or event.calls])

    def _asking(self, pause: Pause) -> Said:
        self.said = True
        return Said(raw=None, text=f"{BETWEEN if self._texted else ''}{shown_to_user(pause)}", pause=pause)

    def end(self, pause: Pause | None = None) -> tuple[Event, ...]:
        """The held finish and usage, once everything is stored; before them what the user is asked by `pause`."""
        shown: list[Event] = [] if pause is None else [*self._ends(), self._asking(pause)]
        counted: Counted | None = None
        for event in self._held:
            if isinstance(event, Said):
                told = self._visible(self._finished(event))
                if event.usage is not None and (self._rounds or pause is not None or told != (event,)):
                    # Its frame is not told as it came: the usage that stood in it has one of its own.
                    counted = Counted(raw=None, usage=event.usage)
                    told = tuple(msgspec.structs.replace(each, raw=None, usage=None) for each in told)
                shown.extend(told)
            elif self._include_usage:
                shown.append(self._summed(event))
                counted = None
        if counted is not None and self._include_usage:
            shown.append(self._summed(counted))
        self._held.clear()
        return tuple(shown)

    def reply(self) -> Reply:
        """The answer of this round. It has no message where there were several choices or nothing was said."""
        blocks: list[Block] = []
        if self._reasoning:
            blocks.append(Reasoning(text="".join(self._reasoning)))
        if self._texts:
            blocks.append(Text(text="".join(self._texts)))
        blocks.extend(self._tool_calls())
        made: Message | None = None
        if blocks and len(self._choices) == 1:
            made = message("assistant", tuple(blocks), sized=False)
        return Reply(message=made, finish=self.finish, usage=self.usage)

    def spoken(self) -> Reply:
        """What the client has been shown of the answer, of all rounds together, however it ends."""
        last = self.reply()
        said = shown_of([*self._replies, last.message], self.own)
        return Reply(message=said, finish=last.finish, usage=last.usage)

    def _note(self, event: Said) -> None:
        if event.usage is not None:
            self.usage = event.usage
        self._choices.add(event.choice)
        if event.finish is not None:
            self._finishes[event.choice] = event.finish
        for choice, finish in event.others:
            self._choices.add(choice)
            if finish is not None:
                self._finishes[choice] = finish
        if event.choice:
            return
        if event.text:
            self._texts.append(event.text)
        if event.reasoning:
            self._reasoning.append(event.reasoning)
        for call in event.calls:
            known = self._calls.get(call.index)
            self._calls[call.index] = (
                call
                if known is None
                else CallDelta(
                    index=call.index,
                    id=known.id or call.id,
                    name=known.name or call.name,
                    extra=known.extra or call.extra,
                )
            )
            self._arguments.setdefault(call.index, []).append(call.arguments)

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(id=call.id, name=call.name, arguments="".join(self._arguments[index]), extra=call.extra)
            for index, call in sorted(self._calls.items())
        )

    def _finished(self, event: Said) -> Said:
        """Whoever called none of the client's tools has stopped."""
        theirs = self._shown_calls or any(call.name not in self.own for call in self._calls.values())
        if event.finish != "tool_calls" or theirs or not self.own:
            return event
        return msgspec.structs.replace(event, raw=None, finish="stop")

    def _visible(self, event: Said) -> tuple[Said, ...]:
        """`event` without calls of ours, later rounds' calls renumbered behind the earlier ones'."""
        if self._rounds and event.blank:
            return ()
        if event.text:
            if self._apart:
                event = msgspec.structs.replace(event, raw=None, text=BETWEEN + event.text)
                self._apart = False
            self._texted = True
        if event.calls and (self.own or self._shown_calls):
            shown = tuple(self._renumbered(call) for call in event.calls if not self._is_kept_back(call))
            if shown != event.calls:
                if not (shown or event.text or event.reasoning or event.finish):
                    return ()
                event = msgspec.structs.replace(event, raw=None, calls=shown)
        if not event.blank:
            self.said = True
        return (event,)

    def _is_kept_back(self, call: CallDelta) -> bool:
        """Whether it is ours, or nobody can say yet: some servers send the id before the name."""
        known = self._calls.get(call.index)
        if known is not None and not known.name:
            self._unnamed.add(call.index)
            return True
        return known is not None and known.name in self.own

    def _renumbered(self, call: CallDelta) -> CallDelta:
        place = self._places.setdefault(call.index, self._shown_calls + len(self._places))
        if call.index in self._unnamed:
            self._unnamed.remove(call.index)
            arguments = "".join(self._arguments[call.index])
            return msgspec.structs.replace(self._calls[call.index], index=place, arguments=arguments)
        return call if place == call.index else msgspec.structs.replace(call, index=place)

    def _summed(self, event: Counted) -> Counted:
        if not self._rounds:
            return event
        output, thought = event.usage.output + self._before.output, event.usage.reasoning + self._before.reasoning
        usage = msgspec.structs.replace(event.usage, output=output, reasoning=thought)
        read = event.usage.input + self._before.input
        return Counted(raw=None, usage=usage, rounds=self._rounds + 1, read=read)
