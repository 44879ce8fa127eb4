"""The dry run is the gateway's own decision: its figures add up, and what it keeps is what the core assembles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.catalogue import ranks_folder
from proxy.commands.compact import Asked, read_call
from proxy.commands.dry_run import Outcome, dry_run
from proxy.core.policy import ModelCard, Policy
from proxy.core.steps import Call
from proxy.upstream.counter import Counter
from tests.data import folder


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    made = Counter(ranks_folder())
    yield made
    made.close()


class Estimates:
    """One token for four characters, to have figures that can be worked out by hand."""

    async def count(self, texts: tuple[str, ...], encoding: str) -> tuple[int, ...]:
        return tuple(len(text) // 4 for text in texts)


def adds_up(found: Outcome) -> None:
    messages = sum(part.messages for part in found.parts)
    tokens = sum(part.tokens for part in found.parts)
    assert tokens + 3 + 4 * messages == found.after
    if found.compacted:
        assert found.notes is not None and found.needed
        assert found.after < found.before
        assert all(clip.after < clip.before for clip in found.clips)
        noted = sum(part.messages for part in found.parts if part.name == "notes")
        if not found.repaired:
            assert messages - noted + found.replaced_messages == found.messages


def saved(tmp_path_factory: pytest.TempPathFactory, text: str) -> Call:
    path = tmp_path_factory.mktemp("saved") / "chat.json"
    path.write_text(text)
    return read_call(Asked(file=str(path)))


async def test_images_and_reasoning_weigh_though_no_tokenizer_sees_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    image = '{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}'
    text = '[{"role":"user","content":[%s{"type":"text","text":"Look."}]},{"role":"assistant","content":"ok"%s}]'
    reasoning = ',"reasoning_content":"' + "x" * 400 + '"'

    async def before(first: str = "", last: str = "") -> int:
        call = saved(tmp_path_factory, text % (first, last))
        return (await dry_run(call, Policy(), ModelCard(name="m"), 100_000, Estimates())).before

    plain = await before()
    assert await before(first=f"{image},") - plain >= 255
    assert await before(last=reasoning) - plain == 100


async def test_an_output_that_the_tail_leaves_no_room_for_is_lowered_and_said(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = '{"messages":[{"role":"system","content":"%s"},{"role":"user","content":"%s"}],"max_tokens":900}'
    call = saved(tmp_path_factory, text % ("r" * 12_000, "u" * 2_000))
    found = await dry_run(call, Policy(), ModelCard(name="m"), 4096, Estimates())
    assert found.needed and not found.compacted and found.newest_group == 500
    assert found.lowered is not None and found.lowered + found.before <= 4096


@pytest.mark.data
@pytest.mark.parametrize("file", sorted((folder() / "conversations").glob("*.jsonl")), ids=lambda file: file.stem)
async def test_the_figures_of_every_recorded_conversation_add_up(file: Path, counter: Counter) -> None:
    count = sum(1 for line in file.read_bytes().splitlines() if line.strip())
    for line in range(1, count + 1):
        call = read_call(Asked(file=str(file), line=line))
        adds_up(await dry_run(call, Policy(), ModelCard(name="m"), 8192, counter))
