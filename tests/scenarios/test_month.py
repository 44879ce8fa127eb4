"""A month in minutes: one conversation of two thousand turns before a window of 8,192 tokens, its whole history sent
again with every turn. Every turn is answered, the summaries cost less than a call in ten, and memory stays flat: what
grows is the history, about 15 KiB a turn of 190 tokens, once as the client's bytes and once in the bounded caches of
known messages, known histories and what the ledger saw in them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import time
from pathlib import Path

import pytest

from proxy.core.usage import UsageRow
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, usage
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, gate, shown
from tests.scenarios.summarisers import GOOD, is_summary
from tests.strict import StrictUpstream, quarter

WINDOW = 8_192
POLICY = f"window: {WINDOW}\nsummary: {{retries: 1}}\n"
SAID = "The keeper wrote down the level of the river and shut the gate again for the night. "
RULE = "Never open gate 7 at night."


class Model:
    """The conversation's model and its summariser; checks the shape and the size of all that it is asked."""

    def __init__(self) -> None:
        self.strict = StrictUpstream(window=WINDOW, answer=self._answer)
        self.summaries = 0
        self.without_rule = 0

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if is_summary(request):
            self.summaries += 1
            await reply.sse(chat_chunks(GOOD, usage=usage(900, 120), size=64))
        else:
            self.without_rule += not any(RULE in shown(item) for item in request.messages)
            await self.strict(request, reply)

    def _answer(self, request: SeenRequest) -> str:
        return f"Noted for {shown(request.messages[-1])[:12]}: " + SAID * 6


class Client:
    """Sends all that was said, as bytes that only grow."""

    def __init__(self, weir: Gate) -> None:
        self.weir = weir
        self.said: list[bytes] = []
        self.answered = 0

    async def turn(self, number: int) -> None:
        rule = f" {RULE}" if number == 3 else ""
        self._say("user", f"Day {number}: what is the level at gate {number % 9}, mark {number * 7}?{rule} " + SAID)
        body = b'{"model":"scripted","messages":[' + b",".join(self.said) + b"]}"
        answer = await self.weir.send(body)
        self.answered += answer.status == 200
        self._say("assistant", answer.text if answer.status == 200 else "")

    def _say(self, role: str, text: str) -> None:
        self.said.append(json.dumps({"role": role, "content": text}).encode())


def resident() -> float:
    """Mebibytes of this process in memory: gateway, client and provider are all in it. What is free goes back first: a
    request of two megabytes leaves a larger heap than one of a half, and no leak."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


async def prove_a_conversation(turns: int, growth: float, folder: Path, figure: Figure) -> None:
    """Memory is compared after a quarter of the turns and after all."""
    model = Model()
    begun = time.monotonic()
    early = 0.0
    async with (
        ScriptedUpstream(model) as up,
        gate(up.url, policy=POLICY, folder=folder, file=folder / "month.db") as weir,
    ):
        client = Client(weir)
        calls = 0
        for number in range(turns):
            await client.turn(number)
            calls += len(up.ledger)
            up.ledger.clear()  # it keeps every body
            if number + 1 == turns // 4:
                early = resident()
        late = resident()
        rows: list[UsageRow] = await weir.rows()
        stored = await weir.stored()
        spent = time.monotonic() - begun
    print(
        f"{turns} turns in {spent:.0f} s: {model.summaries} summaries, {stored['compaction']} compactions, "
        f"{stored['result']} texts kept, {early:.0f} MiB after {turns // 4} turns, {late:.0f} after all"
    )
    figure.all(
        (f"month of {turns} turns: answered", client.answered, f"== {turns}"),
        (f"month of {turns} turns: upstream calls a turn", calls / turns, "<= 1.1"),
        (f"month of {turns} turns: malformed prompts", len(model.strict.violations), "== 0"),
        (f"month of {turns} turns: refused by the provider", model.strict.overflows, "== 0"),
        (f"month of {turns} turns: prompts without the rule of the third day", max(0, model.without_rule - 3), "== 0"),
        (f"month of {turns} turns: growth in MiB behind the first quarter", late - early, f"<= {growth}"),
    )
    assert stored["compaction"] >= turns // 40
    assert len(rows) == calls
    assert sum(row.purpose == "compaction" for row in rows) == model.summaries
    assert quarter(b"".join(client.said).decode()) > 20 * WINDOW * turns / 2_000


@pytest.mark.timeout(240)
async def test_two_hundred_turns_of_one_conversation(tmp_path: Path, figure: Figure) -> None:
    await prove_a_conversation(200, 8, tmp_path, figure)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_two_thousand_turns_of_one_conversation(tmp_path: Path, figure: Figure) -> None:
    await prove_a_conversation(2_000, 32, tmp_path, figure)
