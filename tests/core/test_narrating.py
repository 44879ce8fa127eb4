"""Who is asked for a narrative, in which order, how often, and when nobody is asked any more."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest

from proxy.core.chain import message
from proxy.core.conversation import Reasoning
from proxy.core.errors import (
    ClientLeft,
    InvalidReply,
    KeyRefused,
    OutOfCredit,
    Overloaded,
    RateLimited,
    Rejected,
    TimedOut,
    Unauthorised,
    Unreachable,
    UpstreamError,
)
from proxy.core.gate import Refusal
from proxy.core.lettered import lettered
from proxy.core.narrating import Narrated, narrated
from proxy.core.policy import Policy
from proxy.core.steps import Reply, Report, Summarise, Summariser
from proxy.core.summary import Matter
from tests.core.histories import call, lines, loop, model, user
from tests.core.narratives import GOOD
from tests.playbook import Played, a_reply, a_snap, like, play, too_long

OTHER = Summariser(name="small", window=8_000)
OWN = Summariser(name="m", window=8_000, own=True)
REPORT = Report(conversation="conv_1", tokens=7_000, window=8_000)
TALK = loop(20)
MATTER = Matter(messages=TALK, start=0, stop=len(TALK))
LATER = GOOD.replace("- Paint the weir.", "- Open the weir.")


def narrative(*script: tuple[Any, Any], asked: tuple[Summariser, ...] = (OTHER, OWN), **more: Any) -> Played:
    retries = more.pop("retries", 2)
    snap = a_snap(8_000, policy=Policy(summary_retries=retries), summarisers=lambda: asked)
    given: dict[str, Any] = {"matter": MATTER, "most": 1_000, "refer": named} | more
    matter, most, refer = given["matter"], given["most"], given["refer"]
    return play(narrated(matter, snap, REPORT, most=most, refer=refer), *script)


def named(text: str) -> str:
    return "res_" + lettered(blake2b(text.encode(), digest_size=12).digest())


def from_(summariser: Summariser) -> Any:
    return like(Summarise, summariser=summariser, report=REPORT)


def says(text: str, finish: str = "stop") -> Callable[[Summarise[Any]], Any]:
    return lambda step: step.judge(a_reply(text, finish=finish))


def thinks(step: Summarise[Any]) -> Any:
    said = message("assistant", (Reasoning(text="So what do I write?"),))
    return step.judge(Reply(message=said, finish="stop", usage=None))


def calls(step: Summarise[Any]) -> Any:
    return step.judge(Reply(message=model("", call("c1")), finish="tool_calls", usage=None))


def test_the_summary_model_is_asked_first_and_its_narrative_taken() -> None:
    played = narrative((from_(OTHER), says(GOOD)))
    told = played.result
    assert isinstance(told, Narrated)
    assert (told.writer, told.calls, told.why) == ("small", 1, "")
    assert "- Paint the weir." in told.text and told.text.startswith("## Requests and intent")
    (asked,) = played[Summarise]
    assert asked.max_tokens == 1_000 + 8_000 // 8, "and room for a model that thinks before it writes"
    assert 0 < asked.projected + asked.max_tokens <= 8_000


def test_a_refused_answer_is_asked_for_again_until_the_retries_are_used() -> None:
    told = narrative((from_(OWN), says("")), (from_(OWN), says("Well.")), (from_(OWN), says(GOOD)), asked=(OWN,)).result
    assert (told.writer, told.calls) == ("m", 3)


def test_behind_the_summary_model_the_conversations_own_is_asked() -> None:
    three = [(from_(OTHER), says("Well."))] * 3
    told = narrative(*three, (from_(OWN), says(GOOD))).result
    assert (told.writer, told.calls, told.why) == ("m", 4, "")


def test_behind_all_of_them_nobody_is_asked_and_the_last_reason_is_told() -> None:
    told = narrative((from_(OTHER), says("")), (from_(OWN), thinks), retries=0).result
    assert told == Narrated(why="reasoning_only", calls=2)


@pytest.mark.parametrize(
    ("answered", "why", "again"),
    [
        (says(""), Refusal.EMPTY, True),
        (says(GOOD, finish="length"), Refusal.UNFINISHED, False),
        (says("I'm sorry, but I cannot help with that."), Refusal.REFUSED, False),
        (says(GOOD, finish="content_filter"), Refusal.REFUSED, False),
        (thinks, Refusal.REASONING_ONLY, False),
        (calls, Refusal.TOOL_CALL, True),
        (says("Well, the weir stands and nothing else is to be said about it."), Refusal.NO_HEADINGS, True),
        (says(GOOD.replace("- Steel", "- Steel " * 4_000)), Refusal.TOO_LONG, True),
        (RateLimited("no", upstream_status=429), "upstream_rate_limited", True),
        (Overloaded("no", upstream_status=503), "upstream_overloaded", True),
        (UpstreamError("no", upstream_status=500), "upstream_error", True),
        (Unreachable("no"), "upstream_unreachable", True),
        (InvalidReply("no"), "upstream_invalid_response", True),
        (InvalidReply("no", upstream_status=200), "upstream_invalid_response", True),
        (TimedOut("no"), "upstream_timeout", False),
        (KeyRefused("no", upstream_status=401), "upstream_auth_failed", False),
        (Unauthorised("no"), "invalid_api_key", False),
        (OutOfCredit("no", upstream_status=429), "insufficient_quota", False),
        (Rejected("no", upstream_status=400), "upstream_rejected", False),
        (too_long(limit=None), "overflow", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_be_answered_better_is_asked_once_more_and_what_may_not_is_left(
    answered: Any, why: str, again: bool
) -> None:
    times = 2 if again else 1
    told = narrative(*[(from_(OWN), answered)] * times, asked=(OWN,), retries=1).result
    assert told == Narrated(why=str(why), calls=times)


def test_without_room_nobody_is_asked() -> None:
    assert narrative(most=63).result == Narrated(why="no_room")
    assert narrative(asked=()).result == Narrated(why="no_room")
    tiny = Summariser(name="tiny", window=500)
    assert narrative(asked=(tiny,)).result == Narrated(why="no_room")


def test_a_model_without_room_leaves_it_to_the_next() -> None:
    tiny = Summariser(name="tiny", window=500)
    told = narrative((from_(OWN), says(GOOD)), asked=(tiny, OWN)).result
    assert (told.writer, told.calls) == ("m", 1)


def test_a_window_that_the_refusal_states_is_planned_for_once_more() -> None:
    unknown = Summariser(name="small", window=None)
    script = [(from_(unknown), too_long(limit=6_000)), (from_(unknown), says(GOOD))]
    played = narrative(*script, asked=(unknown,))
    first, second = played[Summarise]
    assert first.projected > 6_000 > second.projected + second.max_tokens
    assert (played.result.writer, played.result.calls) == ("small", 2)


def test_a_window_that_shrinks_twice_is_left_alone() -> None:
    played = narrative((from_(OTHER), too_long(limit=4_000)), (from_(OTHER), too_long(limit=3_000)), asked=(OTHER,))
    assert played.result == Narrated(why="overflow", calls=2)


@pytest.mark.parametrize("limit", [None, 8_000, 9_000])
def test_an_overflow_that_states_nothing_new_ends_it(limit: int | None) -> None:
    assert narrative((from_(OTHER), too_long(limit=limit)), asked=(OTHER,)).result == Narrated(why="overflow", calls=1)


def test_a_small_window_is_asked_in_parts_each_on_top_of_the_narrative_before() -> None:
    small = Summariser(name="small", window=2_600)
    played = narrative((from_(small), says(GOOD)), (from_(small), says(LATER)), asked=(small,), matter=of(7))
    first, second = (asked.messages[0].text for asked in played[Summarise])
    assert "part 1 of 2" in first and "the notes so far" not in first
    assert "part 2 of 2" in second and "- Paint the weir." in second
    assert "- Open the weir." in played.result.text
    assert played.result.calls == 2


def test_the_parts_share_the_retries() -> None:
    small = Summariser(name="small", window=2_600)
    lines_ = [(from_(small), says("")), (from_(small), says(GOOD)), (from_(small), says(""))]
    assert narrative(*lines_, asked=(small,), matter=of(7), retries=1).result == Narrated(why="empty", calls=3)


@pytest.mark.parametrize(("turns", "calls"), [(12, 6), (13, 0)])
def test_more_parts_than_a_client_would_wait_for_are_not_asked(turns: int, calls: int) -> None:
    small = Summariser(name="small", window=2_000)
    talk = tuple(said for n in range(turns) for said in (user(lines(40, f"t{n}")), model(lines(40, f"a{n}"))))
    matter = Matter(messages=talk, start=0, stop=len(talk))
    told = narrative(*[(from_(small), says(GOOD))] * calls, asked=(small,), matter=matter).result
    assert (told.calls, told.why) == (calls, "" if calls else "no_room")


def test_the_narrative_before_is_carried_into_the_request() -> None:
    matter = Matter(messages=TALK, start=8, stop=len(TALK), previous=GOOD)
    told = narrative((from_(OTHER), says(LATER)), matter=matter).result
    assert "- Open the weir." in told.text


def test_whole_results_that_may_be_cited_are_named_and_secrets_are_taken_out() -> None:
    talk = (user("My key is hunter2. Look."), *loop(6))
    matter = Matter(messages=talk, start=0, stop=len(talk))
    snap = a_snap(8_000, summarisers=lambda: (OWN,), redact=lambda text: text.replace("hunter2", "[redacted]"))
    reference = "res_" + "a" * 24
    leaky = GOOD.replace("- Steel", "- The key is hunter2. Steel")
    played = play(narrated(matter, snap, REPORT, most=1_000, refer=lambda text: reference), (from_(OWN), says(leaky)))
    assert played.result.references == (reference,)
    assert "hunter2" not in played[Summarise][0].messages[0].text
    assert "hunter2" not in played.result.text and "The key is [redacted]" in played.result.text


def test_a_client_that_leaves_ends_it() -> None:
    with pytest.raises(ClientLeft):
        narrative((from_(OTHER), ClientLeft(said=False)))


def of(turns: int) -> Matter:
    talk = loop(turns, 40)
    return Matter(messages=talk, start=0, stop=len(talk))
