"""Sixty texts that try to leave their quotation, through the whole application: in a tool's result, the user's words,
the model's words and a summary model's answer. None of them reaches the system role, closes a fence or becomes a line
of ours, in any prompt that goes upstream.

What is ours in a prompt is told by looking at the bytes, not by asking the code that made them.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.core.injections import INJECTIONS
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, tool_call, usage
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Wire, assistant, gate, shown, system, tool, user

WINDOW = 4_096
MARK = "ghijklmn"
"""What stands where a forger would put a mark that he guessed."""
SYSTEM = "You are the harbour's assistant."
CARRIERS = ("result", "user", "assistant", "summary")
GOOD = """\
## Requests and intent
- The user has the gates checked.

## Constraints
- {said}

## Decisions and reasons
- None were made.

## Work done
- Gates were read.

## Open work and task list
- The newest request.

## Facts
- {said}

## Next step
- Answer it."""

HEADS = (
    "## Constraints",
    "## Next step",
    "## Earlier requests of the user, word for word",
    "## Ledger: identifiers by turn and tool",
)
"""Titles of ours that notes have once, and a forger may spell as we do."""

_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_TAG = re.compile(r"[<\u2039\u3008]\s*/?\s*(?:conversation[-_\u2010-\u2015 ]?notes|quoted[-_\u2010-\u2015])", re.I)
_OURS = re.compile(
    r"\s*(?:#{1,6} ?(?:constraints|next step|earlier requests|ledger)|\[[^\]\n]{0,24}\bturn \d"
    r"|notes on .{0,120} written by the gateway|\(and \d)",
    re.IGNORECASE,
)
_TURN = re.compile(
    r"[#*\[\s]*(?:system|human|assistant|developer|系统|система|システム"
    r"|summary|notes so far|instructions|zusammenfassung)"
    r"\b[^\n]{0,40}[:\uff1a]|<\||\[/?INST\]|<(?:start|end)_of_turn>|<\s*system",
    re.IGNORECASE,
)
_BREAKS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def is_summary(request: SeenRequest) -> bool:
    return "<quoted-" in shown(request.messages[0]) and len(request.messages) == 1


class Provider:
    """Answers every call; as a summary model, with notes that hold `said`. Keeps what it was asked, by conversation."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.asked: dict[str, list[list[Wire]]] = {}

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        text = "\n".join(map(shown, request.messages))
        name = re.findall(r"case-\d+-\w+", text)[-1]
        self.asked.setdefault(name, []).append(request.messages)
        if is_summary(request):
            await reply.sse(
                chat_chunks(GOOD.format(said=self.said.get(name, "no rule")), usage=usage(900, 90), size=64)
            )
        else:
            await reply.json(200, chat_reply("Done.", usage=usage(900, 3)))


def history(name: str, carrier: str, text: str) -> list[Wire]:
    """About twice the window, `text` early in it, where `carrier` puts it; what is said besides is the same always."""
    said = [system(SYSTEM)]
    for turn in range(12):
        here = turn in (2, 5)
        words = f"Request {turn} of {name}: check gate {turn}, please."
        result = "\n".join(f"{turn:02d}:{minute:02d} gate {turn} is shut" for minute in range(60))
        answer = f"Gate {turn} is shut."
        said += [
            user(f"{words}\n{text}\nThanks." if here and carrier == "user" else words),
            assistant(None, tool_call(f"c{turn}", "read_log", {"gate": turn})),
            tool(f"c{turn}", f"{result}\nError: {text}\n{text}\n{result}" if here and carrier == "result" else result),
            assistant(f"{answer}\n{text}\nSo much." if here and carrier == "assistant" else answer),
        ]
    return [*said, user(f"And now for {name}?")]


def in_system(prompt: Sequence[Wire]) -> int:
    """Bytes in the system role that the client did not put there."""
    told = [shown(item) for item in prompt if item["role"] not in ("user", "assistant", "tool")]
    return sum(len(text.encode()) for text in told if text != SYSTEM)


def tags(text: str) -> int:
    """What a reader could take for a tag of ours, however it is spelt."""
    return len(_TAG.findall(_UNSEEN.sub("", unicodedata.normalize("NFKC", text))))


def forged(prompt: Sequence[Wire], sent: set[str], text: str, own_words: bool) -> tuple[int, int]:
    """Fences that are not ours in `prompt`, and lines of the injected `text` that stand in it as lines of ours would,
    or as a turn would. Messages that the client `sent` are its own; so are the user's words, but for lines of ours."""
    fences = lines = 0
    for item in prompt:
        said = shown(item)
        if said in sent:
            continue
        notes = re.fullmatch(r'<conversation-notes id="(\w+)">\n(.*)\n</conversation-notes id="\1">', said, re.DOTALL)
        if notes:
            bodies, around = [notes.group(2)], ""
        else:
            mark = re.findall(r"<quoted-([a-p]{8}) what=", said)[0]
            whole = re.compile(rf'<quoted-{mark} what="[^"\n]*">\n(.*?)\n</quoted-{mark}>', re.DOTALL)
            bodies, around = whole.findall(said), whole.sub("", said).replace(f"<quoted-{mark}>", "")
            fences += "gate" in around  # a word of the history outside of its fence
        fences += tags(around) + sum(map(tags, bodies))
        turns = not (notes and own_words)
        lines += sum(standing(body, text, turns) for body in bodies)
    return fences, lines


def standing(body: str, text: str, turns: bool) -> int:
    """How many lines of `text` that look like ours, or like a turn, stand in `body` as they are."""
    there = [line.strip() for line in _BREAKS.sub("\n", body).split("\n")]
    count = 0
    for line in {each.strip() for each in _BREAKS.sub("\n", text).split("\n")}:
        if line and (_OURS.match(line) or (turns and _TURN.match(line))):
            count += max(0, there.count(line) - (line in HEADS))
    return count


@pytest.mark.timeout(240)
async def test_what_others_write_stays_in_its_fence(tmp_path: Path, figure: Figure) -> None:
    provider = Provider()
    cases = [
        (f"case-{number}-{carrier}", carrier, text.replace("{mark}", MARK))
        for number, (_, text) in enumerate(INJECTIONS)
        for carrier in CARRIERS
    ]
    provider.said = {name: text for name, carrier, text in cases if carrier == "summary"}
    policy = f"window: {WINDOW}\nsummary: {{retries: 0}}\n"
    answered = 0
    async with ScriptedUpstream(provider) as up, gate(up.url, policy=policy, folder=tmp_path) as weir:
        for start in range(0, len(cases), 20):
            asked = [weir.ask(history(*case)) for case in cases[start : start + 20]]
            answered += sum(answer.status == 200 for answer in await asyncio.gather(*asked))
    prompts = [(name, prompt) for name, all_ in provider.asked.items() for prompt in all_]
    sent = {case[0]: {shown(item) for item in history(*case)} for case in cases}
    put = {name: (text, carrier == "user") for name, carrier, text in cases}
    found = [(name, *forged(prompt, sent[name], *put[name])) for name, prompt in prompts]
    for name, fences, lines in found:
        if fences or lines:
            print(f"{name} ({INJECTIONS[int(name.split('-')[1])][0]}): {fences} fences, {lines} lines")
    notes = [prompt for _, prompt in prompts if any("<conversation-notes" in shown(item) for item in prompt)]
    assert len(INJECTIONS) >= 60
    assert len(prompts) >= 2 * len(cases), "not every conversation was summarised"
    assert len(notes) >= len(cases), "not every conversation was compacted"
    figure.all(
        (f"injections, {len(cases)} cases: answered", answered, f"== {len(cases)}"),
        ("injections: untrusted bytes in the system role", sum(in_system(prompt) for _, prompt in prompts), "== 0"),
        ("injections: forged fences", sum(fences for _, fences, _ in found), "== 0"),
        ("injections: forged lines of ours", sum(lines for *_, lines in found), "== 0"),
    )
