from __future__ import annotations

import random
import statistics

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import measure
from proxy.core.conversation import Approval, Media, Reasoning, Text, ToolCall
from proxy.core.policy import Policy
from proxy.core.steps import Anchor, Limits, Ratio
from tests.core.histories import PICTURE, lines, loop, user
from tests.data import ROOT, conversations


@given(st.text(max_size=400))
def test_an_estimate_is_positive_for_all_text_and_never_fails(text: str) -> None:
    assert (measure.estimate(text) > 0) == bool(text)


@given(st.text(max_size=200), st.text(max_size=200))
def test_an_estimate_of_two_texts_is_about_the_sum(one: str, two: str) -> None:
    parts = measure.estimate(one) + measure.estimate(two)
    assert abs(measure.estimate(one + two) - parts) <= 2 + 0.46 * parts


def test_lone_surrogates_are_counted_not_refused() -> None:
    assert measure.estimate("\ud800") == 1


def samples() -> dict[str, str]:
    dice = random.Random(7)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return {
        "english": "A weir keeps the river from overflowing, and lets boats pass by a lock beside it. " * 40,
        "german": "Ein Wehr hält den Fluss zurück, damit er nicht über die Ufer tritt, sagt der Müller. " * 40,
        "code": "def weir(level: int) -> bool:\n    if level > 7:\n        return gate(level - 7)\n    return False\n"
        * 30,
        "json": '{"path": "src/app.py", "line": 12, "ok": true, "items": ["a", "b"], "size": 3071}\n' * 40,
        "log": "2026-01-07 14:05:04,113 INFO [worker-3] GET /api/v1/items?page=2 200 in 12.7 ms\n" * 40,
        "chinese": "水坝可以防止河水泛滥，也可以让船只通过旁边的船闸。" * 40,
        "russian": "Плотина удерживает реку, чтобы она не вышла из берегов весной. " * 40,
        "emoji": "😀🎉🚀" * 100,
        "base64": "".join(dice.choice(letters) for _ in range(3_000)),
        "hex": "".join(dice.choice("0123456789abcdef") for _ in range(3_000)),
    }


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("english", 0.85, 1.3),
        ("german", 0.7, 1.3),
        ("code", 0.8, 1.4),
        ("json", 0.75, 1.3),
        ("log", 0.75, 1.3),
        ("chinese", 0.7, 1.6),
        ("russian", 0.6, 1.6),
        ("emoji", 0.6, 2.2),
        ("base64", 0.7, 1.3),
        ("hex", 0.7, 1.4),
    ],
)
def test_estimates_stay_within_their_recorded_bounds(kind: str, low: float, high: float) -> None:
    text = samples()[kind]
    assert low <= measure.estimate(text) / exact(text) <= high


def exact(text: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(ROOT / "proxy" / "catalogue" / "ranks"))  # read at the first use only
        return len(tiktoken.get_encoding("o200k_base").encode_ordinary(text))


@pytest.mark.parametrize(
    ("media", "tokens"),
    [
        (Media(kind="image", digest="a", size=1, detail="low"), 85),
        (Media(kind="image", digest="a", size=1, width=512, height=512), 85 + 170),
        (Media(kind="image", digest="a", size=1, width=1024, height=1024), 85 + 4 * 170),
        (Media(kind="image", digest="a", size=1), 85 + 4 * 170),
        (Media(kind="image", digest="a", size=1, width=4096, height=2048), 85 + 6 * 170),
        (Media(kind="image", digest="a", size=1, width=1, height=1), 85 + 170),
        (Media(kind="audio", digest="a", size=6_400), 100),
        (Media(kind="file", digest="a", size=1), 16),
    ],
)
def test_media_weigh_what_providers_say(media: Media, tokens: int) -> None:
    assert measure.media_tokens(media) == tokens


def test_every_kind_of_block_that_a_model_reads_is_counted() -> None:
    assert measure.block_tokens(Reasoning(text="so I think")) > 0
    assert measure.block_tokens(ToolCall(id="a", name="read", arguments='{"a":1}')) > 6
    assert measure.block_tokens(Text(text="see", media=(PICTURE,))) == measure.estimate("see") + 255
    assert measure.block_tokens(Approval(id="a", action="b", reason="c")) == 0
    assert measure.message_tokens((), "bob") == measure.MESSAGE_OVERHEAD + measure.estimate("bob")
    said = loop(1)
    assert measure.prompt_tokens(said, 40) == 43 + sum(item.tokens for item in said)
    assert user(lines(9)).tokens > 9 * 9


def test_the_ratio_converges_and_forgets_and_is_bounded() -> None:
    ratio = Ratio()
    for _ in range(3):
        ratio = measure.learn(ratio, 1_300, 1_000)
    assert ratio.value == pytest.approx(1.3)
    assert ratio.samples == 3
    for _ in range(60):
        ratio = measure.learn(ratio, 800, 1_000)
    assert ratio.value == pytest.approx(0.8, abs=0.02)
    assert measure.learn(ratio, 1_600, 1_000).value == pytest.approx(ratio.value + (1.6 - ratio.value) / 16)
    assert measure.learn(Ratio(), 10**9, 1).value == 4.0
    assert measure.learn(Ratio(), 1, 10**9).value == 0.4
    assert measure.learn(ratio, 0, 10) is ratio
    assert measure.learn(ratio, 10, 0) is ratio


def test_a_projection_adds_what_was_added_to_what_was_reported() -> None:
    ratio = Ratio(value=1.2, samples=3)
    anchor = Anchor(upstream="u", model="m", shape=b"s", reported=1_000, estimated=900)
    assert measure.project(1_000, ratio) == 1_200
    assert measure.project(1_000, ratio, anchor) == 1_120
    assert measure.project(0, Ratio(value=4.0, samples=1), anchor) == 0


def test_room_is_what_the_design_says() -> None:
    room = measure.room(Policy(), Limits(total=10_000), 1_000)
    assert room == measure.Room(window=10_000, trigger=8_500, target=5_000, fit=8_800, most=9_784)
    crowded = measure.room(Policy(), Limits(total=10_000), 9_000)
    assert crowded == measure.Room(window=10_000, trigger=7_300, target=5_000, fit=7_300, most=9_784)
    assert measure.room(Policy(), Limits(), 1_000) is None


def test_a_known_input_limit_leaves_the_output_aside() -> None:
    room = measure.room(Policy(), Limits(input=10_000), 9_000)
    assert room == measure.Room(window=10_000, trigger=8_500, target=5_000, fit=9_800, most=9_800)
    both = measure.room(Policy(), Limits(total=12_000, input=10_000), 4_000)
    assert both is not None
    assert (both.window, both.fit, both.most) == (10_000, 8_800, 9_800)


@given(st.integers(1, 2_000_000), st.one_of(st.none(), st.integers(1, 2_000_000)))
def test_rooms_are_ordered(window: int, output: int | None) -> None:
    room = measure.room(Policy(), Limits(total=window), output)
    assert room is not None
    assert 1 <= room.trigger <= room.fit <= max(room.most, 1)
    assert room.target <= room.trigger
    assert room.most <= max(1, window - 16 - 16)


@pytest.mark.data
def test_estimates_of_recorded_messages_are_near_the_exact_count() -> None:
    shares = []
    for row in conversations("tau-bench", "swe-agent", "openhands", "mt-bench", "aider"):
        for message in row.messages[:40]:
            text = message.get("content")
            if isinstance(text, str) and len(text) > 200:
                shares.append(measure.estimate(text[:4_000]) / exact(text[:4_000]))
    shares.sort()
    assert 0.9 < statistics.median(shares) < 1.12
    assert shares[len(shares) // 20] > 0.7
    assert shares[-len(shares) // 20] < 1.5
