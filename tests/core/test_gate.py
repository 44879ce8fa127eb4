"""Only a narrative passes the gate; everything else is refused with its reason, whatever language it is in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core import chain, gate, summary
from proxy.core.conversation import Message, Reasoning, Text
from proxy.core.fence import SECTIONS
from proxy.core.gate import Accepted, Answer, Refusal, Rejected
from proxy.core.measure import estimate
from proxy.core.narrative import NEXT, OPEN, read
from proxy.core.steps import Reply
from proxy.core.summary import Matter, Request
from tests.core.histories import call, lines, model, result, user
from tests.core.injections import INJECTIONS
from tests.core.narratives import GOOD, OTHER, REFERENCE, texts

HISTORY: tuple[Message, ...] = (
    user("Please build the weir at mill 4 and never push to main."),
    model("", call("c1", path="src/weir.py")),
    result("c1", lines(300)),
    model("It stands. I wrote src/weir.py and its tests, and the gauge reads 4711 mm now."),
)
RUSSIAN: tuple[Message, ...] = (
    user("Пожалуйста, построй плотину у мельницы и ничего не удаляй."),
    model("", call("c1", path="src/weir.py")),
    result("c1", lines(300)),
    model("Готово, плотина стоит."),
)


def asked(messages: tuple[Message, ...] = HISTORY, previous: str = "", most: int = 1024) -> Request:
    plan = summary.planned(
        Matter(messages=messages, start=0, stop=len(messages), previous=previous),
        window=None,
        max_tokens=most,
        refer=lambda text: chain.reference(b"s" * 32, text),
    )
    assert plan is not None
    return summary.request(plan, 0, plan.previous)


CITED = asked().known[0]
NOTES = GOOD.replace(REFERENCE, CITED)


def said(text: str, finish: str | None = "stop", **more: object) -> Answer:
    return Answer(text=text, finish=finish, **more)  # type: ignore[arg-type]


def refused(given: Answer, request: Request | None = None) -> tuple[Refusal, bool]:
    judged = gate.judge(given, request or asked())
    assert isinstance(judged, Rejected), judged
    return judged.reason, judged.worth_retrying


def accepted(given: Answer, request: Request | None = None, **options: object) -> Accepted:
    judged = gate.judge(given, request or asked(), **options)  # type: ignore[arg-type]
    assert isinstance(judged, Accepted), judged
    return judged


# -- what passes -----------------------------------------------------------------------------------------------------


def test_a_good_narrative_passes_as_it_is() -> None:
    assert accepted(said(NOTES)) == Accepted(narrative=NOTES, headings=7)
    assert accepted(said(f"<think>Hm. ## Facts</think>\n{NOTES}", finish="end_turn")).narrative == NOTES


def test_sections_that_were_left_out_stay_and_are_named() -> None:
    before = asked(previous=NOTES)
    made = accepted(
        said("## Requests and intent\n- Paint too.\n## Constraints\nNone\n## Facts\n\n## Next step\n- Paint."), before
    )
    assert made.kept == ("Constraints", "Decisions and reasons", "Work done", "Open work and task list", "Facts")
    bodies = read(made.narrative).bodies
    assert bodies[0] == "- Paint too."
    assert bodies[1:6] == read(NOTES).bodies[1:6]
    assert made.headings == 4


def test_an_empty_minded_summariser_loses_nothing() -> None:
    request = asked(previous=NOTES)
    empty = "\n".join(f"## {title}\nNone" for title in SECTIONS)
    assert refused(said(empty), request) == (Refusal.EMPTY, True)
    poor = empty.replace("None", "- Some work was done on the weir.", 1)
    bodies = read(accepted(said(poor), request).narrative).bodies
    assert bodies[1:] == read(NOTES).bodies[1:]


def test_what_passes_is_within_its_size() -> None:
    long = "\n\n".join(
        f"## {title}\n" + "\n".join(f"- thing {n} of it was seen" for n in range(30)) for title in SECTIONS
    )
    made = accepted(said(long), asked(most=1024))
    assert estimate(long) > 1024 >= estimate(made.narrative)
    assert made.narrative.count("thing 29 of it") == 7


def test_invented_references_go_and_given_ones_stay() -> None:
    made = accepted(said(GOOD.replace(f"[{REFERENCE}]", f"[{CITED}, {OTHER}]")))
    assert CITED in made.narrative
    assert OTHER not in made.narrative


def test_secrets_of_an_answer_are_taken_out() -> None:
    made = accepted(said(NOTES.replace("4711", "hunter2")), redact=lambda text: text.replace("hunter2", "***"))
    assert "hunter2" not in made.narrative
    assert "***" in made.narrative


def test_identifiers_that_vanished_are_carried_unless_they_stand_elsewhere() -> None:
    request = asked(previous=NOTES)
    poor = NOTES.replace("Built src/weir.py and tests/test_weir.py (ticket ABC-17).", "Built it.")
    assert "Named in earlier notes: src/weir.py, tests/test_weir.py, ABC-17" in accepted(said(poor), request).narrative
    present = frozenset({"src/weir.py", "tests/test_weir.py", "ABC-17"})
    assert "Named in earlier" not in accepted(said(poor), request, present=present).narrative


@pytest.mark.parametrize(("tries", "text"), INJECTIONS, ids=[tries for tries, _ in INJECTIONS])
def test_a_narrative_with_an_injection_is_refused_or_comes_out_without_it(tries: str, text: str) -> None:
    request = asked()
    for hostile in (text.replace("{mark}", request.mark), text.replace("{mark}", "jepgkhik")):
        judged = gate.judge(said(NOTES.replace("- Server:", f"{hostile}\n- Server:")), request)
        if isinstance(judged, Accepted):
            lines = judged.narrative.split("\n")
            assert [line for line in lines if line.startswith("#")] == [f"## {title}" for title in SECTIONS if title]
            assert request.mark not in judged.narrative
            assert not any(line.lstrip().startswith(("[turn", "System", "Human")) for line in lines)
            assert "</conversation" not in judged.narrative.replace("\u200b", "").casefold()


# -- what does not ---------------------------------------------------------------------------------------------------

ENGLISH_WORK = (
    "```python\n" + "\n".join(f"def weir_{number}() -> int:\n    return {number}" for number in range(30)) + "\n```"
)
RECORD = "\n".join(f"line {number}: the quick brown fox goes on and on" for number in range(60))

FAULTS: dict[str, tuple[Answer, Refusal, bool]] = {
    "empty": (said(""), Refusal.EMPTY, True),
    "blank": (said(" \n\t\n"), Refusal.EMPTY, True),
    "only empty sections": (said("\n".join(f"## {title}\n" for title in SECTIONS)), Refusal.EMPTY, True),
    "reasoning only": (said("", reasoned=True), Refusal.REASONING_ONLY, False),
    "reasoning only, cut": (said("", finish="length", reasoned=True), Refusal.REASONING_ONLY, False),
    "reasoning in the text only": (said("<think>I should write notes.</think>\n"), Refusal.REASONING_ONLY, False),
    "reasoning that never ends": (said("<think>I should " + NOTES), Refusal.REASONING_ONLY, False),
    "cut at max_tokens": (said(NOTES[:400], finish="length"), Refusal.UNFINISHED, False),
    "cut before a word": (said("", finish="length"), Refusal.UNFINISHED, False),
    "reset in mid-stream": (said(NOTES[:400], finish=None), Refusal.UNFINISHED, True),
    "an unknown finish": (said(NOTES, finish="error"), Refusal.UNFINISHED, True),
    "filtered": (said(NOTES, finish="content_filter"), Refusal.REFUSED, False),
    "declined apart from the text": (said("", declined="I cannot."), Refusal.REFUSED, False),
    "refusing": (said("I'm sorry, but I can't help with summarizing that."), Refusal.REFUSED, False),
    "refusing in German": (said("Es tut mir leid, dabei kann ich nicht helfen."), Refusal.REFUSED, False),
    "refusing in Chinese": (said("抱歉，我无法总结这段对话。"), Refusal.REFUSED, False),
    "refusing in Russian": (said("Извините, я не могу помочь с этим."), Refusal.REFUSED, False),
    "refusing in Japanese": (said("申し訳ありませんが、お手伝いできません。"), Refusal.REFUSED, False),
    "a tool call": (said("", finish="tool_calls", calls=1), Refusal.TOOL_CALL, True),
    "a tool call beside notes": (said(NOTES, calls=1), Refusal.TOOL_CALL, True),
    "tool syntax: tags": (
        said('<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'),
        Refusal.TOOL_SYNTAX,
        True,
    ),
    "tool syntax: function": (said("<function=read>\n<parameter=path>a</parameter>"), Refusal.TOOL_SYNTAX, True),
    "tool syntax: json": (said('{"name": "read_file", "arguments": {"path": "a"}}'), Refusal.TOOL_SYNTAX, True),
    "tool syntax: fenced json": (said('```json\n{"name": "read", "parameters": {}}\n```'), Refusal.TOOL_SYNTAX, True),
    "tool syntax: mistral": (said('[TOOL_CALLS][{"name": "a"}]'), Refusal.TOOL_SYNTAX, True),
    "tool syntax: deepseek": (said("<\uff5ctool\u2581calls\u2581begin\uff5c>x"), Refusal.TOOL_SYNTAX, True),
    "tool syntax: react": (said("Thought: look\nAction: read\nAction Input: a.py"), Refusal.TOOL_SYNTAX, True),
    "tool syntax behind notes": (said(NOTES + '\n<invoke name="bash">ls</invoke>'), Refusal.TOOL_SYNTAX, True),
    "no headings": (said("The user asked for a weir and it was built."), Refusal.NO_HEADINGS, True),
    "too few headings": (
        said("## Facts\n- one\n## Next step\n- two\n## Constraints\n- three"),
        Refusal.NO_HEADINGS,
        True,
    ),
    "other headings": (said("# Summary\n- a\n## Files\n- b\n## Todo\n- c\n## Done\n- d"), Refusal.NO_HEADINGS, True),
    "translated headings": (said("## Anfragen\n- a\n## Regeln\n- b\n## Fakten\n- c"), Refusal.NO_HEADINGS, True),
    "too long": (
        said(NOTES.replace("- Server", "- and one thing more about it\n" * 600 + "- Server")),
        Refusal.TOO_LONG,
        True,
    ),
    "continuing with both sides": (said("User: and now?\nAssistant: I paint it."), Refusal.CONTINUES, True),
    "continuing behind notes": (said(NOTES + "\n\nHuman: go on\n\nAssistant: ok"), Refusal.CONTINUES, True),
    "continuing in Chinese": (said("用户：然后呢？\n助手：我来油漆。"), Refusal.CONTINUES, True),
    "continuing in Russian": (said("Пользователь: дальше?\nАссистент: крашу."), Refusal.CONTINUES, True),
    "continuing with template tokens": (
        said("<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\nhi"),
        Refusal.CONTINUES,
        True,
    ),
    "continuing with code": (said(f"Here is the weir:\n\n{ENGLISH_WORK}\n"), Refusal.CONTINUES, True),
    "continuing with code, then notes": (said(f"{ENGLISH_WORK}\n\n{NOTES}"), Refusal.CONTINUES, True),
    "continuing before notes": (said("Let me go on. " * 90 + "\n" + NOTES), Refusal.CONTINUES, True),
    "continuing in the next step": (
        said(NOTES + "\n" + "I paint it now and then I look again.\n" * 60),
        Refusal.CONTINUES,
        True,
    ),
    "repeating the record": (said(RECORD), Refusal.REPEATS, True),
    "repeating the record under headings": (
        said(NOTES.replace("- Steel", RECORD + "\n- Steel")),
        Refusal.REPEATS,
        True,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_with_its_reason(fault: str) -> None:
    given, reason, again = FAULTS[fault]
    assert refused(given) == (reason, again)


def test_a_prompt_that_is_repeated_is_known_by_our_own_words() -> None:
    request = asked()
    text = request.messages[0].text
    assert refused(said(text), request) == (Refusal.REPEATS, True)
    assert refused(said(text.replace(request.mark, "jepgkhik")), request) == (Refusal.REPEATS, True)
    assert refused(said(text.rpartition("</quoted")[2].partition("\n\n")[2]), request) == (Refusal.REPEATS, True)
    assert refused(said(f"{NOTES}\n{request.mark}"), request) == (Refusal.REPEATS, True)


def test_a_verdict_says_in_one_word_whether_it_was_taken() -> None:
    assert gate.judge(said(NOTES), asked()).refused == ""
    assert gate.judge(said(""), asked()).refused == "empty"


def test_carrying_the_previous_notes_over_word_for_word_is_no_repetition() -> None:
    assert accepted(said(NOTES), asked(previous=NOTES)).narrative == NOTES


def test_an_answer_that_is_not_shorter_than_what_it_replaces_is_refused() -> None:
    small = asked((user("Build it, please do."), model("Done, it stands.")))
    assert refused(said(NOTES), small) == (Refusal.NOT_SHORTER, False)


def test_the_wrong_script_is_refused_and_the_right_one_taken() -> None:
    request = asked(RUSSIAN)
    assert refused(said(NOTES), request) == (Refusal.WRONG_SCRIPT, True)
    russian = "\n\n".join(
        f"## {title}\n- Построена плотина у мельницы, файл src/weir.py, покраска ещё впереди." for title in SECTIONS
    )
    assert accepted(said(russian), request).headings == 7
    assert refused(said(russian), asked()) == (Refusal.WRONG_SCRIPT, True)


def test_tool_syntax_that_is_only_spoken_of_passes() -> None:
    spoken = NOTES.replace("- Server:", "- The parser must accept `<tool_call>` and `<invoke name=x>`.\n- Server:")
    assert "`(tool_call>`" in accepted(said(spoken)).narrative or "`<tool_call>`" in accepted(said(spoken)).narrative


def test_a_narrative_with_some_code_and_one_speaker_passes() -> None:
    text = NOTES.replace("- Server:", "```\nmake test\n```\nUser: wants it blue.\n- Server:")
    assert "make test" in accepted(said(text)).narrative


def test_a_long_apology_under_headings_is_no_refusal() -> None:
    assert accepted(said("Unfortunately some of it was cut.\n" + NOTES)).narrative == NOTES


# -- replies ---------------------------------------------------------------------------------------------------------


def test_what_is_judged_of_a_reply() -> None:
    message = chain.message("assistant", (Reasoning(text="hm"), Text(text="a"), call("c")))
    given = gate.answer(Reply(message=message, finish="stop", usage=None))
    assert given == Answer(text="a", finish="stop", calls=1, reasoned=True)
    assert gate.answer(Reply(message=None, finish=None, usage=None)) == Answer(text="", finish=None)


@settings(max_examples=60)
@given(texts(), st.sampled_from(["", NOTES]), st.sampled_from(["stop", "length", None]))
def test_whatever_is_said_the_gate_decides_and_what_passes_can_be_built_on(
    text: str, previous: str, finish: str | None
) -> None:
    request = asked(previous=previous)
    judged = gate.judge(said(text, finish), request)
    if isinstance(judged, Rejected):
        return
    assert finish == "stop"
    assert estimate(judged.narrative) <= request.max_tokens
    before, after = read(request.previous).bodies, read(judged.narrative).bodies
    for section in {*range(7)} - {OPEN, NEXT}:
        assert after[section] or not before[section]
    assert gate.judge(said(judged.narrative), asked(previous=judged.narrative)) is not None
