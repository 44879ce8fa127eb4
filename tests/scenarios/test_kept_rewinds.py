"""Conversations that the gateway keeps, rewound and spoken into anew: what was taken back is never told again, neither
word for word nor in notes.
"""

from __future__ import annotations

import random
import re

import pytest

from tests.fakes import Script, ScriptedUpstream, SeenRequest, chat_chunks, chat_reply, usage
from tests.scenarios.conftest import Figure
from tests.scenarios.gate import Gate, gate, shown, user
from tests.strict import violation

WINDOW = 1_200
MARK = re.compile(r"mark\d+")


async def answering(request: SeenRequest, reply: Script) -> None:
    assert violation(request.json) is None
    last = MARK.findall(request.messages[-1]["content"])[-1]
    said = f"Seen {last}. " + " ".join(f"{last}tide{place}" for place in range(25))
    counted = usage(sum(len(shown(message)) for message in request.messages) // 4, 40)
    if request.stream:
        await reply.sse(chat_chunks(said, usage=counted))
    else:
        await reply.json(200, chat_reply(said, usage=counted))


class Talk:
    """A conversation, and the marks that stand on its path."""

    def __init__(self, weir: Gate, id: str, draw: random.Random) -> None:
        self.weir = weir
        self.id = id
        self.draw = draw
        self.marks: list[str] = []
        self.said = 0
        self.compacted = 0

    async def say(self) -> None:
        self.said += 1
        mark = f"mark{self.said}"
        text = f"About {mark}: " + " ".join(f"{mark}x{place}" for place in range(25))
        answer = await self.weir.ask([user(text)], conversation=self.id, stream=self.draw.random() < 0.5)
        assert answer.status == 200, answer.body
        assert answer.text.startswith(f"Seen {mark}.")
        self.compacted += answer.compaction != "none"
        self.marks.append(mark)

    async def rewind(self) -> None:
        turns = self.draw.randrange(1, min(6, len(self.marks)) + 1)
        done = await self.weir.client.post(f"/v1/conversations/{self.id}/rewind", json={"turns": turns})
        assert done.status_code == 200, done.content
        del self.marks[-turns:]


@pytest.mark.parametrize("seed", range(4))
async def test_a_rewound_conversation_tells_nothing_that_was_taken_back(seed: int, figure: Figure) -> None:
    draw = random.Random(seed)
    stale = missing = 0
    async with ScriptedUpstream(answering) as up, gate(up.url, window=WINDOW) as weir:
        made = await weir.client.post("/v1/conversations", json={})
        talk = Talk(weir, made.json()["id"], draw)
        for _ in range(40):
            if talk.marks and draw.random() < 0.25:
                await talk.rewind()
                continue
            await talk.say()
            told = set(MARK.findall("\n".join(map(shown, up.ledger[-1].request.messages))))
            stale += len(told - set(talk.marks))
            missing += len(set(talk.marks[-2:]) - told)
        assert talk.compacted > 3
        figure.all(
            ("rewound and told again", stale, "== 0"),
            ("latest requests of the path that are not told", missing, "== 0"),
        )
