"""Whatever a summary model does, the client gets its answer and no request of the user is lost: every fault, before a
call and after an overflow, with and without the built-in notes to fall back on, as JSON and as a stream.

Each test is one line of a table that is printed at the end: who wrote the notes, after how many calls, and why not the
model. The upstream checks every prompt; rows, metrics and its ledger must agree.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from proxy.summarising import Patience
from tests.fakes import Script, ScriptedUpstream, SeenRequest, by_model, tool_call
from tests.scenarios import summarisers as models
from tests.scenarios.acts import Act, balanced, refusing
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Answer, Gate, gate, shown
from tests.scenarios.summarisers import GOOD, Provider, account, checking, saying
from tests.server.wired import chat

WINDOW = 8_192
TURNS = 24
"""Of the settled conversation: a quarter more than the window."""
RETRIES = 1
OWN = "scripted"


@dataclass(frozen=True)
class Fault:
    """`act`: what the summary model does. `why`: the reason in the row of each of its calls, None where the narrative
    is taken. `patience`: how long it is waited for."""

    act: Act
    why: str | None
    calls: int = 1
    patience: Patience = field(default_factory=Patience)


AGAIN = 1 + RETRIES
SHORT = Patience(first=1.5, idle=1.5, total=3)
FAULTS: dict[str, Fault] = {
    "good": Fault(saying(GOOD), None),
    "slow but alive": Fault(models.slow(3.5), None, patience=Patience(first=3, idle=20)),
    "empty": Fault(saying(""), "refused_empty", AGAIN),
    "reasoning only": Fault(models.thinking, "refused_reasoning_only"),
    "cut at max_tokens": Fault(saying(GOOD[:300], finish="length"), "refused_unfinished"),
    "refusing": Fault(saying("I'm sorry, but I can't help with that."), "refused_refused"),
    "filtered": Fault(saying(GOOD[:100], finish="content_filter"), "refused_refused"),
    "tool calls": Fault(saying(None, calls=[tool_call("c", "read_file", {"path": "x"})]), "refused_tool_call", AGAIN),
    "tool syntax as text": Fault(saying(models.SYNTAX), "refused_tool_syntax", AGAIN),
    "no headings": Fault(saying("All gates were checked and are shut, one by one."), "refused_no_headings", AGAIN),
    "too long": Fault(saying(models.LONG), "refused_too_long", AGAIN),
    "wrong language": Fault(saying(models.RUSSIAN), "refused_wrong_script", AGAIN),
    "continuing the task": Fault(saying(models.PLAY), "refused_continues", AGAIN),
    "repeating the prompt": Fault(models.repeating, "refused_repeats", AGAIN),
    "overflowing": Fault(models.overflowing, "context_length_exceeded"),
    "429": Fault(refusing(429, {"retry-after": "60"}), "upstream_rate_limited", AGAIN),
    "500": Fault(refusing(500), "upstream_error", AGAIN),
    "401": Fault(refusing(401), "invalid_api_key"),
    "hanging before a word": Fault(models.silent, "upstream_timeout", patience=SHORT),
    "hanging in the middle": Fault(models.stuck, "upstream_timeout", patience=Patience(first=20, idle=0.25)),
    "reset in mid-stream": Fault(models.resetting, "upstream_invalid_response", AGAIN),
}
STAGES = {"before": (True, True), "overflow": (False, True), "before, model only": (True, False)}
STAGES |= {"overflow, model only": (False, False)}
"""Whether the window is known before the call, and whether the built-in notes may be used."""


@pytest.mark.parametrize("name", FAULTS)
async def test_whatever_a_summary_model_does(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    fault = FAULTS[name]
    cells = {(stage, stream): f"{stage}-{stream}" for stage in STAGES for stream in (False, True)}
    for folder in cells.values():
        (tmp_path / folder).mkdir()
    told = await asyncio.gather(*(cell(fault, *key, tmp_path / folder) for key, folder in cells.items()))
    line = dict(zip(cells, told, strict=True))
    assert all(line[stage, False] == line[stage, True] for stage in STAGES), "JSON and SSE differ"
    shown_ = " | ".join(f"{stage}: {line[stage, False]}" for stage in STAGES)
    print(text := f"{name:<22} {fault.calls}x {fault.why or 'accepted':<27} | {shown_}")
    request.node.user_properties.append(("figure", text))


async def cell(fault: Fault, stage: str, stream: bool, folder: Path) -> str:
    """One cell of the table, asserted; how it is printed."""
    known, built_in = STAGES[stage]
    provider = Provider(fault.act, None if known else WINDOW)
    policy = f'match: "*"\nsummary: {{retries: {RETRIES}, builtin: {str(built_in).lower()}}}\n'
    opened_with = {"window": WINDOW if known else None, "policy": policy, "folder": folder}
    async with ScriptedUpstream(provider) as up, gate(up.url, **opened_with) as opened:  # type: ignore[arg-type]
        assert opened.app._gateway is not None
        opened.app._gateway.patience = fault.patience
        answer = await opened.ask(checking(TURNS), stream=stream)
        await audited(fault, opened, up, provider)
        stored = (await opened.stored())["compaction"]
        assert provider.strict.violations == []
        if fault.why is not None and not built_in:
            assert stored == 0, "a failure changes nothing"
            return unhelped(answer, provider, known)
        assert stored == 1
        return helped(answer, provider, OWN if fault.why is None else "builtin", "auto" if known else "recovered")


def helped(answer: Answer, provider: Provider, writer: str, compaction: str) -> str:
    """The answer came, behind notes of `writer`."""
    assert (answer.status, answer.text, answer.finish) == (200, "Gate report done.", "stop"), answer.body
    assert answer.done is answer.streamed
    assert (answer.compaction, answer.context["notes"]) == (compaction, writer)
    text = "\n".join(map(shown, provider.told[-1]))
    assert ("Gates stay shut during checks." in text) is (writer == OWN)
    verbatim, cut, counted, lost = account(provider.told[-1], TURNS + 1)
    assert lost == 0 and verbatim >= TURNS // 2, (verbatim, cut, counted)
    return f"{writer}, requests {verbatim}+{cut}+{counted}"


def unhelped(answer: Answer, provider: Provider, known: bool) -> str:
    """Before a call the provider decides; what it refuses is told with its numbers."""
    assert account(provider.told[-1], TURNS + 1) == (TURNS + 1, 0, 0, 0)
    if known:
        assert (answer.status, answer.text, answer.compaction) == (200, "Gate report done.", "none")
        return "sent whole"
    assert (answer.status, answer.code) == (400, "context_length_exceeded")
    requested = provider.strict.prompts[-1]
    assert answer.error is not None
    assert {str(WINDOW), str(requested)} <= set(re.findall(r"\d+", answer.error["message"].replace(",", "")))
    return "refused with numbers"


async def audited(fault: Fault, opened: Gate, up: ScriptedUpstream, provider: Provider) -> None:
    """A row for each call, with its purpose and its reason, the same in the metric; and what was asked is plain."""
    rows = [row for row in await balanced(opened, up) if row.purpose == "compaction"]
    assert len(rows) == len(provider.summaries) == fault.calls
    assert [row.error for row in rows] == [fault.why] * fault.calls
    answered = fault.why is None or fault.why.startswith("refused_")
    assert {row.status for row in rows} <= ({"ok"} if answered else {"failed", "partial"}), [row.status for row in rows]
    assert all(row.model == OWN and row.conversation and row.compaction == "none" for row in rows)
    outcome = fault.why or "accepted"
    assert await opened.metric(f'weirgate_summaries_total{{outcome="{outcome}"}}') == fault.calls
    assert await opened.metric("weirgate_summaries_total") == fault.calls
    for body in provider.summaries:
        assert set(body) == {"model", "messages", "max_tokens", "stream", "stream_options"}
        assert [message["role"] for message in body["messages"]] == ["user"]


# -- the chain ---------------------------------------------------------------------------------------------------------

CHAIN = 'match: "*"\nsummary: {model: scribe, retries: 0}\n'
KEYS = {"any": ("acme", "k", "secret-of-acme"), "own only": ("acme", "k", "secret-of-acme", [OWN])}


@pytest.mark.parametrize(
    ("scribe", "own", "key", "asked", "writer"),
    [
        (saying(GOOD), saying(""), "any", ["scribe"], "scribe"),
        (saying(""), saying(GOOD), "any", ["scribe", OWN], OWN),
        (refusing(401), saying(GOOD), "any", ["scribe", OWN], OWN),
        (refusing(404), saying(GOOD), "any", ["scribe", OWN], OWN),
        (saying(""), refusing(500), "any", ["scribe", OWN], "builtin"),
        (saying(GOOD), saying(GOOD), "own only", [OWN], OWN),
    ],
    ids=["scribe", "own", "key refused", "no such model", "built-in", "not allowed"],
)
async def test_the_summary_model_then_the_own_one_then_nobody(
    scribe: Act, own: Act, key: str, asked: list[str], writer: str, tmp_path: Path
) -> None:
    provider = Provider(by_model({"scribe": scribe, OWN: own}), None)
    stated = {"window": WINDOW, "policy": CHAIN, "folder": tmp_path, "keys": [KEYS[key]]}
    async with ScriptedUpstream(provider) as up, gate(up.url, **stated) as opened:  # type: ignore[arg-type]
        answer = await opened.ask(checking(TURNS), headers={"authorization": "Bearer secret-of-acme"})
        rows = [row for row in await balanced(opened, up) if row.purpose == "compaction"]
    assert (answer.status, answer.context["notes"]) == (200, writer)
    assert [row.model for row in rows] == [body["model"] for body in provider.summaries] == asked
    assert {row.request for row in rows} == {answer.headers["x-request-id"]}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_summary_model_whose_window_nobody_knew_is_believed_and_asked_in_parts(
    stream: bool, tmp_path: Path
) -> None:
    provider = Provider(by_model({"scribe": models.Narrow(6_000)}), None)
    stated = {"window": WINDOW * 2, "policy": CHAIN, "folder": tmp_path}
    async with ScriptedUpstream(provider) as up, gate(up.url, **stated) as opened:  # type: ignore[arg-type]
        answer = await opened.ask(checking(TURNS * 2), stream=stream)
        rows = [row for row in await balanced(opened, up) if row.purpose == "compaction"]
    assert (answer.status, answer.context["notes"]) == (200, "scribe")
    assert [row.error for row in rows] == ["context_length_exceeded", *[None] * (len(rows) - 1)]
    assert len(rows) > 2
    assert account(provider.told[-1], TURNS * 2 + 1)[3] == 0


@pytest.mark.parametrize("act", [saying(GOOD), saying("")], ids=["model", "built-in"])
async def test_requests_too_long_for_any_notes_are_cut_and_said_so_or_counted(
    act: Act, figure: Figure, tmp_path: Path
) -> None:
    provider = Provider(act, None)
    policy = 'match: "*"\nsummary: {retries: 0}\n'
    async with ScriptedUpstream(provider) as up, gate(up.url, window=WINDOW, policy=policy, folder=tmp_path) as opened:
        answer = await opened.ask(models.wordy(40))
        assert (answer.status, answer.compaction) == (200, "auto")
    verbatim, cut, counted, lost = account(provider.told[-1], 41)
    assert verbatim >= 2 and cut >= 1 and counted >= 1
    figure.all((f"requests of 41: {verbatim} whole, {cut} cut, {counted} counted; lost", lost, "== 0"))


async def test_the_clients_own_key_goes_to_no_other_upstream(tmp_path: Path) -> None:
    provider, other = Provider(saying(GOOD), None), Provider(saying(GOOD), None)
    async with ScriptedUpstream(provider) as up, ScriptedUpstream(other) as there:
        stated = {
            "upstreams__other__base_url": there.url,
            "models": {"scribe": {"upstream": "other"}, "*": {"upstream": "main"}},
        }
        opening = gate(up.url, window=WINDOW, policy=CHAIN, folder=tmp_path, **stated)
        async with opening as opened:
            answer = await opened.ask(checking(TURNS), headers={"authorization": "Bearer sk-of-the-client"})
            await opened.rows()
    assert (answer.status, answer.context["notes"]) == (200, "scribe")
    assert up.ledger[-1].request.headers["authorization"] == "Bearer sk-of-the-client"
    assert [entry.request.headers.get("authorization") for entry in there.ledger] == [None]


async def test_a_stream_that_had_to_begin_before_the_summary_was_there_says_at_its_end_what_was_done(
    tmp_path: Path,
) -> None:
    begun = asyncio.Event()

    async def late(request: SeenRequest, reply: Script) -> None:
        async with asyncio.timeout(20):
            await begun.wait()
        await saying(GOOD)(request, reply)

    provider = Provider(late, None)
    policy = 'match: "*"\nsummary: {retries: 0}\n'
    stated = {"window": WINDOW, "policy": policy, "folder": tmp_path, "server__hold": 0.01}
    async with ScriptedUpstream(provider) as up, gate(up.url, **stated) as opened:  # type: ignore[arg-type]
        call = chat(opened.app, {"model": OWN, "messages": checking(TURNS), "stream": True})
        status, headers = await call.head()
        begun.set()
        body = await call.rest()
        await call.done()
    assert status == 200 and "x-weirgate-context" not in headers
    said = re.findall(rb"(?m)^: weirgate (tokens=.*)$", body)
    assert len(said) == 1 and b"compaction=auto; notes=scripted" in said[0]
    assert body.endswith(b"data: [DONE]\n\n")
