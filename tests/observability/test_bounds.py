"""What clients make up never becomes a series: five thousand odd models, paths, users and labels leave a handful."""

from __future__ import annotations

from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_reply, usage
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, gate

ODD = 5_000
MOST = 1_000
"""Series of a gateway with one model and one upstream, buckets and all."""


async def answering(_: SeenRequest, reply: Script) -> None:
    await reply.json(200, chat_reply("Yes.", usage=usage(20, 2)))


async def series(weir: Gate) -> list[str]:
    text = (await weir.get("/metrics")).text
    return [line.partition(" ")[0] for line in text.splitlines() if not line.startswith("#")]


async def test_the_number_of_series_is_bounded_under_odd_models_and_paths(figure: Figure) -> None:
    async with ScriptedUpstream(answering) as up, gate(up.url) as weir:
        said = [{"role": "user", "content": "Is the weir open?"}]
        head = {"x-session-id": "canary-label"}
        await weir.ask(said, model="canary-first", headers=head, user="canary-user")
        await weir.get("/canary/first")
        before = await series(weir)
        for number in range(ODD // 2):
            await weir.get(f"/canary/{number}")
            await weir.client.request(f"CANARY{number}", "/v1/models")
        for number in range(ODD // 2):
            head["x-session-id"] = f"canary-{number}"
            await weir.ask(said, model=f"canary-{number}", headers=head, user=f"canary{number}")
        after = await series(weir)
    assert not any("canary" in name.lower() for name in after)
    new = {name.partition("{")[0] for name in set(after) - set(before)}
    assert new <= {"weirgate_requests_total", "weirgate_requests_created"}  # a status that had not been seen
    figure.all(
        (f"70 series after {ODD} odd models, paths and methods", len(after), f"<= {MOST}"),
        ("70 series that they added", len(after) - len(before), "<= 4"),
    )
