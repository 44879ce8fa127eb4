"""Real clients read what a model says that calls the gateway's tools: one well-formed message, however many rounds it
took, and whatever it asks the user.

A client talks through all conversations once, with a gateway of its own; every test reads what was heard of them.
`pytest -s` prints the table: right answers by client, case and mode.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients import hearing, programs
from tests.clients.framing import LOOSE, Wire
from tests.clients.hearing import MODES, Heard, raw_messages
from tests.clients.loading import AGAIN, CASES, ONCE_MORE, SUN, Ask, Case, Key, Say, Shown, measured
from tests.fakes import SeenRequest
from tests.scenarios.conftest import Figure

THINKERS = ("wire", "openai-python", "openai-node", "vercel")
"""Clients that read reasoning where DeepSeek put it."""
SAME = ("text", "reasoning", "calls", "finish", "messages", "error", "tokens", "usage", "weirgate")
"""What of an answer does not depend on its being a stream, as far as the client tells it."""

pytestmark = pytest.mark.timeout(240)


AGAIN_AFTER = ("alone", "text before", "two at once", "bad slug", "an id used again", "mixed", "mixed twice")
ANSWERED = ("a question", "an approval", "a skill, then a question")
"""Cases in which a second turn is asked for, of an agent without memory: that would shorten the closed one; and cases
in which the same words answer a question."""
ALSO = tuple(
    Key(case, manner, mode, "steady")
    for case in (*AGAIN_AFTER, *ANSWERED)
    for manner, mode in (("openai", "json"), ("mistral", "sse+usage"))
)


@pytest.fixture(scope="module", params=hearing.CLIENTS)
def heard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    client = request.param
    programs.need(client)
    chosen = (*hearing.keys(client), *ALSO)
    return asyncio.run(hearing.hear(client, tmp_path_factory.mktemp(client), chosen, again=ALSO))


def thoughts(key: Key, numbers: range) -> int:
    """Tokens of reasoning in these replies."""
    told = [said(CASES[key.case], number).told.usage for number in numbers]
    return sum(usage["completion_tokens_details"]["reasoning_tokens"] for usage in told)


def said(case: Case, number: int) -> Say:
    return case.says[min(number, len(case.says) - 1)]


def rounds(key: Key) -> Iterator[tuple[int, Shown, range]]:
    """Each answer of a conversation with the replies of the model that it is made of."""
    start = 0
    for place, shown in enumerate(CASES[key.case].shown):
        yield place, shown, range(start, start + shown.rounds)
        start += shown.rounds


def compared(found: dict[str, tuple[object, object]]) -> list[str]:
    return [f"{what} is {is_!r}, not {wanted!r}" for what, (is_, wanted) in found.items() if is_ != wanted]


def misread(heard: Heard, key: Key) -> list[str]:
    """What is wrong with the answers that the client read."""
    answers = heard.answers[key]
    wrong = compared({"answers": (len(answers), len(CASES[key.case].shown))})
    for (place, shown, _), answer in zip(rounds(key), answers, strict=False):
        # LangChain names its streams itself; the AI SDK makes no message of an empty answer.
        unnamed = heard.client == "langchain" and key.stream
        silent = heard.client.startswith("vercel") and not shown.text and not shown.calls
        found = compared(
            {
                "text": (answer["text"], shown.text),
                "calls": (
                    [(call["id"], call["name"], call["arguments"]) for call in answer["calls"]],
                    [(call.id, "weather", {"city": call.city}) for call in shown.calls],
                ),
                "finish": (answer["finish"], [shown.finish]),
                "messages": (answer["messages"], 0 if silent else 1),
                "ids": (len(answer["ids"]), 0 if unnamed else 1),
                "error": (answer["error"], None),
                "faults": (answer.get("faults", []), []),
                "reasoning": (
                    answer.get("reasoning") if heard.client in THINKERS else shown.reasoning,
                    shown.reasoning,
                ),
            }
        )
        wrong += [f"{key} [{place}]: {each}" for each in found]
    return wrong


def miscounted(heard: Heard, key: Key) -> list[str]:
    """What is wrong with the usage that the client read."""
    wrong = []
    for (place, _, numbers), answer in zip(rounds(key), heard.answers[key], strict=False):
        spent = [said(CASES[key.case], number).told.usage["completion_tokens"] for number in numbers]
        wanted = [measured(heard.asked[key][numbers[-1]]), sum(spent)]
        if heard.client == "wire" and answer["usage"]:
            thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            wrong += [f"{key} [{place}]: {each}" for each in compared({"thoughts": (thought, thoughts(key, numbers))})]
        # Not asked for, usage is told only by a server that puts it into its last frame, and then of one round.
        unasked = not key.usage and (key.manner in ("mistral", "with finish") or heard.client == "vercel-openai")
        if answer["tokens"] != (wanted if key.usage else None) and not (unasked and answer["tokens"] in (None, wanted)):
            wrong.append(f"{key} [{place}]: tokens are {answer['tokens']}, not {wanted}")
    return wrong


def table(heard: Heard) -> str:
    lines = [f"{heard.client:<26}{''.join(f'{mode:>11}' for mode in MODES)}"]
    for case in CASES:
        cells = []
        for mode in MODES:
            chosen = [key for key in heard.answers if (key.case, key.mode) == (case, mode)]
            right = [key for key in chosen if not misread(heard, key) + miscounted(heard, key)]
            cells.append(f"{len(right):>7} / {len(chosen)}")
        lines.append(f"  {case:<24}{''.join(f'{cell:>11}' for cell in cells)}")
    return "\n".join(lines)


def test_each_answer_is_one_well_formed_message(heard: Heard, figure: Figure) -> None:
    print(f"\n{table(heard)}")
    wrong = [each for key in heard.answers for each in misread(heard, key)]
    assert wrong == []
    figure(f"tools: misread by {heard.client}, of {len(heard.answers)} conversations", len(wrong), "== 0")


def test_usage_is_the_last_prompt_and_all_completions(heard: Heard) -> None:
    assert [wrong for key in heard.answers for wrong in miscounted(heard, key)] == []


def test_there_is_one_closed_row_for_each_round(heard: Heard) -> None:
    wrong = []
    for key, rows in heard.rows.items():
        seen: list[object] = []
        for _, _, numbers in rounds(key):
            mine = rows[numbers.start : numbers.stop]
            seen += [(row["purpose"], row["parent"]) for row in mine]
            wanted = [("chat", None), *[("tool_round", mine[0]["id"])] * (len(numbers) - 1)] if mine else []
            requests = {row["request"] for row in mine}
            counts = [(row["input"], row["output"]) for row in mine]
            spent = [said(CASES[key.case], number).told.usage["completion_tokens"] for number in numbers]
            sent = [measured(request) for request in heard.asked[key][numbers.start : numbers.stop]]
            found = compared(
                {
                    "rows": (seen[numbers.start :], wanted),
                    "requests": (len(requests), 1),
                    "states": ({row["status"] for row in mine}, {"ok"}),
                    "counts": (counts, list(zip(sent, spent, strict=True))),
                }
            )
            wrong += [f"{key}: {each}" for each in found]
        wrong += [f"{key}: {each}" for each in compared({"all rows": (len(rows), len(heard.asked[key]))})]
    assert wrong == []


def test_each_round_begins_with_the_last_one_and_goes_on_with_what_was_said(heard: Heard) -> None:
    assert heard.violations == []
    wrong = []
    for key, requests in heard.asked.items():
        case = CASES[key.case]
        for number, (before, after) in enumerate(pairwise(requests)):
            first, second = raw_messages(before), raw_messages(after)
            if second[: len(first)] != first:
                wrong.append(f"{key}: prompt {number + 1} does not begin with prompt {number}")
            wrong += [f"{key}: {each}" for each in untold(said(case, number), after, len(first))]
        tools = {json.dumps(request.json["tools"]) for request in requests}
        wrong += [f"{key}: {each}" for each in compared({"tool lists": (len(tools), 1)})]
    assert wrong == []


def untold(say: Say, request: SeenRequest, start: int) -> list[str]:
    """What is missing where a prompt should go on with what the model said, under one message with all its results:
    those of our tools, then those of the client's."""
    message, *results = request.messages[start:]
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    wanted = [(call.id, call.wire["function"]["name"], _object(call.wire)) for call in say.calls]
    ours = [call for call in say.calls if not isinstance(call, Ask)]
    theirs = [call for call in say.calls if isinstance(call, Ask)]
    found = compared(
        {
            "role": (message["role"], "assistant"),
            "text": (message.get("content") or "", say.text or ""),
            "calls": ([(id, name, json.loads(raw)) for id, name, raw in calls], wanted),
            "results": (
                [each["tool_call_id"] for each in results],
                [*(call.id for call in ours), *(call.id for call in theirs)],
            ),
            "theirs": ([_text(each) for each in results[len(ours) :]], [SUN] * len(theirs)),
        }
    )
    answered = zip(ours, results, strict=False)
    return found + [f"{call} was told {_text(each)!r}" for call, each in answered if call.tells not in _text(each)]


def test_the_next_turn_begins_with_the_last_prompt_byte_for_byte(heard: Heard) -> None:
    wrong = []
    for key, (answer, request) in heard.again.items():
        before, after = raw_messages(heard.asked[key][-1]), raw_messages(request)
        final, asked = request.messages[len(before) :]
        case = CASES[key.case]
        last = said(case, sum(shown.rounds for shown in case.shown) - 1)
        found = compared(
            {
                "answer": (answer["text"], ONCE_MORE),
                "beginning": (after[: len(before)], before),
                "reply": ((final["role"], _text(final)), ("assistant", last.text)),
                "question": (_text(asked), AGAIN),
                "role": (asked["role"], "tool" if key.case in ANSWERED else "user"),
            }
        )
        wrong += [f"{key}: {each}" for each in found]
    assert (wrong, len(heard.again)) == ([], len(ALSO))


async def test_a_server_that_numbers_calls_in_a_way_of_its_own_is_read_where_it_is_normalised(tmp_path: Path) -> None:
    keys = [Key(case, manner, mode) for case in CASES for manner in LOOSE for mode in ("sse", "sse+usage")]
    heard = await hearing.hear("wire", tmp_path, keys, normalise=True)
    assert [wrong for key in keys for wrong in misread(heard, key) + miscounted(heard, key)] == []
    assert heard.violations == []


@pytest.mark.parametrize("naming", ["label", "end user", "nobody"])
async def test_what_is_hidden_comes_back_to_whom_the_request_names(naming: str, tmp_path: Path) -> None:
    """Two people behind one key who open with the same words never meet: without a name nothing is put back."""
    keys = [Key("mixed", "openai", mode) for mode in MODES]
    heard = await hearing.hear("wire", tmp_path, keys, naming=naming)
    for key in keys:
        first, second = heard.asked[key]
        if naming == "nobody":
            message, result = second.messages[len(first.messages) :]
            assert [call["id"] for call in message["tool_calls"]] == [result["tool_call_id"]] == ["g1"]
        else:
            assert untold(said(CASES["mixed"], 0), second, len(first.messages)) == []
        assert misread(heard, key) == []
    assert heard.violations == []


def _object(call: Wire) -> object:
    """The arguments as they can be told again: a JSON object."""
    try:
        value = json.loads(call["function"]["arguments"])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(message: Wire) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def test_a_stream_reads_as_the_json_answer_does(heard: Heard) -> None:
    wrong = []
    for key, answers in heard.answers.items():
        if key.mode == "sse+usage":
            whole = heard.answers[Key(key.case, "openai", "json", key.agent)]
            for one, two in zip(answers, whole, strict=True):
                same = [name for name in SAME if name in one]
                found = compared({name: (one[name], two[name]) for name in same})
                wrong += [f"{key}: {each}" for each in found]
    assert wrong == []
