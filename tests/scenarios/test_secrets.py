"""Secrets in a conversation reach the provider that the client chose, and nothing of ours: not the store, not a summary
model, not our lines, metrics or errors.

Every kind of canary stands in the user's words, in a tool's result, in the arguments of a call and in what a summary
model answers; then the bytes are searched.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.core.redaction import redact
from tests import engine
from tests.canaries import Canary, canaries
from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, tool_call, usage
from tests.scenarios.acts import HELLO, refusing, weir
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Wire, assistant, gate, shown, tool, user
from tests.scenarios.summarisers import GOOD, is_summary

BY_CARRIER = {carrier: canaries(seed) for seed, carrier in enumerate(("user", "result", "arguments", "narrative"))}
WINDOW = 16_384


def conversation() -> list[Wire]:
    """Each kind of secret once in the user's words, once in arguments, once in a result; the last request is open."""
    said: list[Wire] = []
    for turn, (asked, called, read) in enumerate(
        zip(BY_CARRIER["user"], BY_CARRIER["arguments"], BY_CARRIER["result"], strict=True)
    ):
        log = "\n".join(f"{turn:02d}:{minute:02d} gate {turn} level {turn * 40 + minute} shut" for minute in range(30))
        said += [
            user(f"Request {turn}: check gate {turn}. {asked.told}"),
            assistant(None, tool_call(f"c{turn}", "write_file", {"path": f"/srv/gate_{turn}", "text": called.told})),
            tool(f"c{turn}", f"{log}\n{read.told}\n{log}"),
            assistant(f"Gate {turn} is shut."),
        ]
    return [*said, user("And now?")]


class Provider:
    """A model, and a summary model that repeats secrets which nobody showed it."""

    def __init__(self) -> None:
        self.summaries: list[str] = []

    async def __call__(self, request: SeenRequest, reply: Script) -> None:
        if is_summary(request):
            self.summaries.append(shown(request.messages[0]))
            facts = "\n".join(f"- {canary.told}" for canary in BY_CARRIER["narrative"] if "\n" not in canary.told)
            narrative = GOOD.replace("- Every gate so far is shut.", facts)
            await reply.sse(chat_chunks(narrative, usage=usage(900, 90), size=64))
        else:
            await reply.json(200, chat_reply("All shut.", usage=usage(9_000, 3)))


def held(data: bytes) -> list[str]:
    """The canaries in `data`, as they are or as JSON writes them."""
    return [
        f"{canary.kind} ({carrier})"
        for carrier, found in BY_CARRIER.items()
        for canary in found
        if canary.core.encode() in data or json.dumps(canary.core)[1:-1].encode() in data
    ]


async def test_what_is_stored_summarised_logged_and_measured_holds_no_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    caplog.set_level("DEBUG")
    file = tmp_path / "weir.db"
    provider = Provider()
    policy = f"window: {WINDOW}\nsummary: {{max_tokens: 2048}}\n"
    async with (
        ScriptedUpstream(provider) as up,
        gate(up.url, file=file, policy=policy, folder=tmp_path) as opened,
    ):
        answer = await opened.ask(conversation())
        assert (answer.status, answer.compaction) == (200, "auto")
        assert answer.context["notes"] == "scripted", "the narrative was not taken: its edge is not tried"
        await opened.rows()
        counted = await opened.stored()
        assert counted["compaction"] == 1
        metrics = (await opened.get("/metrics")).content
        said = caplog.text.encode() + "".join(capfd.readouterr()).encode()
        last = [entry.request for entry in up.ledger if not is_summary(entry.request)][-1]
    kept = await engine.contents(file)
    assert b"[redacted: " in kept, "nothing of what was redacted reached the store: the test looks in the wrong place"
    assert b"Requests and intent" in kept, "the narrative was not taken: its edge is not tried"
    notes = "\n".join(map(shown, last.messages))
    assert "And now?" in notes
    print(held(kept))
    figure.all(
        ("SECRETS-CANARIES", sum(map(len, BY_CARRIER.values())), ">= 200"),
        ("SECRETS-STORED", len(held(kept)), "== 0"),
        ("SECRETS-SUMMARISED", len(held("".join(provider.summaries).encode())), "== 0"),
        ("SECRETS-LOGGED", len(held(said)), "== 0"),
        ("SECRETS-MEASURED", len(held(metrics)), "== 0"),
    )


async def test_what_the_client_sends_goes_to_its_own_provider_as_it_is() -> None:
    said = conversation()[:8]
    provider = Provider()
    async with weir(provider) as (opened, up):
        await opened.ask(said)
        assert [shown(message) for message in up.ledger[-1].request.messages] == [shown(message) for message in said]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_an_error_that_repeats_a_secret_is_told_without_it(
    stream: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], figure: Figure
) -> None:
    caplog.set_level("DEBUG")
    told: list[bytes] = []
    for canary in canaries():
        async with weir(refusing(400, message=f"Invalid value: {canary.told}")) as (opened, _):
            answer = await opened.ask(HELLO, stream=stream)
            assert answer.status == 400
            told.append(answer.body)
    said = caplog.text.encode() + "".join(capfd.readouterr()).encode()
    leaked = [each.kind for each in canaries() if any(_cored(each) in body for body in (*told, said))]
    print(leaked)
    figure("SECRETS-IN-ERRORS", len(leaked), "== 0")


def _cored(canary: Canary) -> bytes:
    return json.dumps(canary.core)[1:-1].encode()


def test_without_redaction_the_search_would_find_them() -> None:
    everything = json.dumps(conversation()).encode()
    assert len(held(everything)) >= 150
    assert held(redact(everything.decode()).encode()) == []
