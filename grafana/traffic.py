"""A rehearsal: two gateways as they ship, two scripted upstreams, and clients whose conversations outgrow windows.

    async with rehearsal(folder) as stage:
        await stage.play(calls=400)
        stage.targets                                 # "127.0.0.1:port" of each gateway

What the live test asks about and what the pictures show both come from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx

from grafana.provider import Pace, Provider
from tests.fakes import ScriptedUpstream

COMMAND: Final = Path(sys.executable).with_name("weirgate")
STARTS: Final = 30.0
_BOUND: Final = re.compile(rb"listening on http://(127\.0\.0\.1:\d+)")
_TALK: Final = "Gate {n} of weir {who} stands at {n} cm; the log says why, and the next reading is due. "

CONFIGURATION: Final = """\
upstreams:
  east: {{base_url: "{east}", api_key: rehearsal, attempts: 2}}
  west: {{base_url: "{west}", api_key: rehearsal, attempts: 2}}
models:
  fast: {{upstream: east, model: gpt-4o-mini}}
  deep: {{upstream: west, model: claude-sonnet-4-5}}
  local: {{upstream: west, model: home-made}}
  helper: {{upstream: east, model: gpt-4.1-mini}}
  "*": {{upstream: east}}
agents:
  support:
    model: helper
    instructions: {{text: You look after the weir.}}
    tools: [read_tool_result]
    memory: {{turns: 8, result_turns: 3, result_chars: 200}}
policies: policies
store: {{url: "sqlite:///weirgate.db"}}
keys:
  - {{id: harbour, tenant: port, secret: sk-harbour-rehearsal}}
  - {{id: locks, tenant: port, secret: sk-locks-rehearsal}}
"""
POLICIES: Final = {
    "default.yaml": "match: '*'\nwindow: 4000\n",
    "deep.yaml": "match: claude-*\nwindow: 3000\n",
    "fast.yaml": "match: gpt-4o-*\nwindow: 4000\nsummary: {model: false}\n",
    # The server behind it takes 3,000: its refusals say no number, so that nothing can be learned of them.
    "local.yaml": "match: home-made\nwindow: 6000\nsummary: {model: false}\n",
}
EAST: Final = Pace(first=0.02, between=0.002, window=4000)
WEST: Final = Pace(first=0.09, between=0.02, window=3000, stated=False, fails=13, down=50.0)

Wire = dict[str, Any]


class Stage:
    """The gateways that run, and who talks to them."""

    def __init__(self, targets: Sequence[str], clients: Sequence[httpx.AsyncClient]) -> None:
        self.targets = tuple(targets)
        self._clients = clients
        self.answered = 0

    async def play(self, calls: int = sys.maxsize) -> None:
        """Eight conversations at a time, one after the other, and beside them who asks for other things; until so many
        calls are answered."""
        numbers = count()

        async def talk() -> None:
            while self.answered < calls:
                await self._converse(next(numbers))

        async with asyncio.TaskGroup() as tasks:
            talking = [tasks.create_task(talk()) for _ in range(8)]
            beside = tasks.create_task(self._beside())
            await asyncio.wait(talking)
            beside.cancel()

    async def _converse(self, number: int) -> None:
        """One conversation, until it is settled or its model gives up."""
        client, key = self._clients[number % 2], ("harbour", "harbour", "locks")[number % 3]
        model = ("fast", "deep", "support", "local", "any-other")[number % 5]
        head = {"authorization": f"Bearer sk-{key}-rehearsal", "x-session-id": f"rehearsal-{number}"}
        if number % 10 == 8:
            head["x-weirgate-mode"] = "observe"  # nothing keeps it inside the window
        said: list[Wire] = []
        for turn in range(24):
            text = "".join(_TALK.format(who=number, n=turn * 100 + line) for line in range(8))
            said.append({"role": "user", "content": text})
            if model == "support":
                said += _used(number, turn)
            if model == "any-other" and turn == 6:  # a result of a call that nobody made: it is repaired
                said.insert(-1, {"role": "tool", "tool_call_id": "gone", "content": "Gate 6 is shut."})
            body = {
                "model": model,
                "messages": said,
                "stream": turn % 4 != 3,
                "stream_options": {"include_usage": True},
            }
            if not body["stream"]:
                del body["stream_options"]
            answer = await self._ask(client, body, head)
            said.append({"role": "assistant", "content": answer or "(nothing)"})

    async def _ask(self, client: httpx.AsyncClient, body: Wire, head: dict[str, str]) -> str:
        answer = await client.post("/v1/chat/completions", json=body, headers=head)
        self.answered += 1
        if answer.status_code != 200:
            return ""
        if not body["stream"]:
            return str(answer.json()["choices"][0]["message"]["content"])
        frames = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        choices = [choice for frame in frames for choice in frame.get("choices") or ()]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    async def _beside(self) -> None:
        """Probes, embeddings, a client that leaves and one that errs."""
        head = {"authorization": "Bearer sk-locks-rehearsal"}
        asked = {"model": "fast", "messages": [{"role": "user", "content": "Is the weir open?"}], "stream": True}
        while True:
            for client in self._clients:
                await client.get("/readyz")
                await client.get("/v1/models", headers=head)
                await client.post("/v1/embeddings", json={"model": "fast", "input": "weir"}, headers=head)
                await client.post("/v1/chat/completions", content=b"{", headers=head)
                with contextlib.suppress(httpx.ReadTimeout):
                    await client.post("/v1/chat/completions", json=asked, headers=head, timeout=0.06)
            await asyncio.sleep(0.3)


def _used(number: int, turn: int) -> list[Wire]:
    """A tool of the client's, called and answered at length."""
    id = f"c{number}_{turn}"
    call = {"id": id, "type": "function", "function": {"name": "read_log", "arguments": json.dumps({"gate": turn})}}
    log = "\n".join(f"{minute:02d} weir {number} gate {turn} level {turn * 40 + minute}" for minute in range(40))
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": log},
        {"role": "assistant", "content": "The log is read."},
        {"role": "user", "content": f"And what of gate {turn + 1} of weir {number}?"},
    ]


@asynccontextmanager
async def rehearsal(folder: Path, gateways: int = 2) -> AsyncIterator[Stage]:
    """The stage while the block runs; what the gateways leave lies in `folder`."""
    async with contextlib.AsyncExitStack() as stack:
        east = await stack.enter_async_context(ScriptedUpstream(Provider(EAST)))
        west = await stack.enter_async_context(ScriptedUpstream(Provider(WEST)))
        targets = []
        for number in range(gateways):
            place = folder / f"gateway{number}"
            (place / "policies").mkdir(parents=True)
            (place / "weirgate.yaml").write_text(CONFIGURATION.format(east=east.url, west=west.url))
            for name, text in POLICIES.items():
                (place / "policies" / name).write_text(text)
            targets.append(await stack.enter_async_context(_serving(place)))
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://{target}", timeout=30))
            for target in targets
        ]
        yield Stage(targets, clients * 2)


@asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[str]:
    """A gateway of its own; yields its address."""
    child = await asyncio.create_subprocess_exec(
        *(str(COMMAND), "serve", "--config", "weirgate.yaml", "--port", "0"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=dict(os.environ),
        start_new_session=True,
    )
    assert child.stderr is not None
    reading: asyncio.Task[bytes] | None = None
    try:
        said = b""
        async with asyncio.timeout(STARTS):
            while not (found := _BOUND.search(said)):
                piece = await child.stderr.read(65_536)
                if not piece:
                    raise RuntimeError(f"the gateway did not start: {said.decode()[-2000:]}")
                said += piece
        reading = asyncio.create_task(child.stderr.read())
        yield found[1].decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STARTS):
                await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
            if reading is not None:
                await reading
