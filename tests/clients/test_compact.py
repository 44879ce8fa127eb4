"""`/compact` as people type it, through the SDKs, over a real socket: what it answers, and the ten turns afterwards."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients import programs
from tests.durability.process import Row, database, running
from tests.fakes import Script, ScriptedUpstream, SeenRequest, tool_call
from tests.scenarios.acts import Act
from tests.scenarios.gate import Wire, assistant, shown, tool
from tests.scenarios.summarisers import GOOD, Provider, account, checking, request, saying

TALK = checking(14)[:-1]
"""14 settled turns, a fifth of the window."""
OTHER_TALK = [{"role": "user", "content": "Good day."}, assistant("Good day!"), *TALK]
AFTERWARDS = [request(turn) for turn in range(15, 25)]
LINE = re.compile(
    r"Conversation compacted: turns 1-(\d+)(?: and the first part of turn \d+)?, ([\d,]+) -> ([\d,]+) tokens\."
)
NOTHING_YET = "Not compacted: there is nothing to compact yet."
NOTHING_NEW = "Not compacted: already compacted, and nothing new was written since."
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TRIED: list[Wire] = [{"role": "user", "content": "Go."}, assistant(None, tool_call("c", "read_file", {"path": "x"}))]

# name: (model, messages, what the user says, the last line, its reason)
REFUSED: dict[str, tuple[str, list[Wire], list[Any], str, str]] = {
    "nothing at all": ("good", [], ["/compact"], NOTHING_YET, "nothing_yet"),
    "too little": (
        "good",
        [{"role": "user", "content": "Hello."}, assistant("Hello!")],
        ["/compact"],
        NOTHING_YET,
        "nothing_yet",
    ),
    "twice": ("good", TALK, ["/compact", "/compact"], NOTHING_NEW, "nothing_new"),
    "twice, refused between": ("good", TALK, ["/compact", "/compact x", "/compact"], NOTHING_NEW, "nothing_new"),
    "a loop is open": (
        "good",
        [*TALK, *TRIED, tool("c", "nothing there")],
        ["/compact"],
        "Not compacted: the latest turn is running or paused.",
        "running",
    ),
    "attachments": (
        "good",
        TALK,
        [[{"type": "text", "text": "/compact"}, IMAGE]],
        "Not compacted: the message has attachments.",
        "attachments",
    ),
    "the summary failed": (
        "bad",
        OTHER_TALK,
        ["/compact"],
        "Not compacted: the summary failed: no headings.",
        "failed",
    ),
}
POLICIES = {
    "default": 'match: "*"\n',
    "bad": 'match: "bad"\nsummary: {builtin: false, retries: 0}\n',
}


@dataclass
class Heard:
    """What one client was answered, and what the provider and the store saw of it."""

    told: list[list[dict[str, Any]]]
    prompts: list[list[Wire]]
    summaries: int
    rows: list[Row]
    compactions: int


async def heard(client: str, folder: Path, *tasks: dict[str, Any]) -> Heard:
    (folder / "policies").mkdir()
    for name, text in POLICIES.items():
        (folder / "policies" / f"{name}.yaml").write_text(text)
    (folder / "weir.yaml").write_text(f"policies: {folder / 'policies'}\n")
    provider = Provider(by_goodness, None)
    async with (
        ScriptedUpstream(provider) as up,
        running(up.url, folder, "--window", "32768", "--config", "weir.yaml") as weir,
    ):
        url = f"http://127.0.0.1:{weir.port}/v1"
        told = await asyncio.to_thread(programs.talk, client, [{**task, "base_url": url} for task in tasks], folder)
        await weir.still()
    assert provider.strict.violations == []
    with database(weir.file) as found:
        stored = found.ask("SELECT count(*) AS n FROM compaction")[0]["n"]
        rows = found.rows()
    return Heard(told, [list(prompt) for prompt in provider.told], len(provider.summaries), rows, stored)


async def by_goodness(asked: SeenRequest, reply: Script) -> None:
    act: Act = saying("It stands.") if asked.model == "bad" else saying(GOOD)
    await act(asked, reply)


@pytest.fixture(params=programs.TALKERS)
def client(request: pytest.FixtureRequest) -> str:
    programs.need(request.param)
    return str(request.param)


@pytest.mark.timeout(120)
async def test_each_refusal_is_one_line_that_says_why_as_json_and_as_a_stream(client: str, tmp_path: Path) -> None:
    cases = [(name, stream) for name in REFUSED for stream in (False, True)]
    tasks = [
        {"model": REFUSED[name][0], "messages": REFUSED[name][1], "says": REFUSED[name][2], "stream": stream}
        for name, stream in cases
    ]
    found = await heard(client, tmp_path, *tasks)
    for (name, _), answers in zip(cases, found.told, strict=True):
        *_, line, reason = REFUSED[name]
        last = answers[-1]
        assert (last["text"], last["finish"]) == (line, "stop"), name
        said = last["weirgate"]["compaction"]
        assert (said["status"], said["reason"], said["line"]) == ("not_compacted", reason, line), name
        assert "compaction_id" not in said and "tokens_after" not in said, "a no-op claims nothing"
    assert found.prompts == [], "no model answers a command"
    assert {row["purpose"] for row in found.rows} == {"compaction"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_success_says_what_it_did_and_the_next_ten_turns_behave(
    client: str, stream: bool, tmp_path: Path
) -> None:
    says = ["/compact keep the levels", *AFTERWARDS, "/compact"]
    found = await heard(client, tmp_path, {"model": "good", "messages": TALK, "says": says, "stream": stream})
    first, *ten, second = found.told[0]

    line, said = LINE.fullmatch(first["text"]), first["weirgate"]["compaction"]
    assert line is not None and first["finish"] == "stop"
    figures = [int(figure.replace(",", "")) for figure in line.groups()]
    assert [said["turns"], said["tokens_before"], said["tokens_after"]] == figures
    assert (said["status"], said["writer"]) == ("compacted", "good")
    assert said["turns"] <= 14 and said["tokens_after"] <= said["tokens_before"] * 0.65

    assert [answer["text"] for answer in ten] == ["Gate report done."] * 10
    assert len(found.prompts) == 10, "the commands were answered by nobody but us"
    for number, prompt in enumerate(found.prompts, 15):
        text = "\n".join(map(shown, prompt))
        assert "/compact" not in text and "Conversation compacted" not in text
        assert "Gates stay shut during checks." in text, "the notes are in use"
        assert shown(prompt[-1]) == request(number)
        assert account(prompt, number)[3] == 0

    chats = [row for row in found.rows if row["purpose"] == "chat"]
    assert {row["compaction_id"] for row in chats} == {said["compaction_id"]}
    again, grown = second["weirgate"]["compaction"], LINE.fullmatch(second["text"])
    assert grown is not None and said["turns"] < again["turns"] <= 24, "turns of the user, commands not counted"
    assert found.compactions == 2 == found.summaries
    assert len(chats) == 10 and len(found.rows) == 12
