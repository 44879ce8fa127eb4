"""Real clients read every recorded chat answer through the gateway exactly as they read it from the provider.

Each client is its own program and reads all streams twice, with and without asking for usage, and each JSON body: text,
reasoning, tool calls, finish reasons, usage, ids, the number of messages and the kind of an error must be equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.clients import conftest, programs, recorded
from tests.clients.programs import Ask
from tests.clients.replay import Provider

CLIENTS = tuple(programs.READERS)
OWN_LIMITS = {"vercel-openai": {"mistral/mistral-tool-call", "mistral/mistral-tool-call.json"}}
"""What a client does not read even from the provider: it wants `content`, and in each call an index and a type."""

pytestmark = [pytest.mark.data, pytest.mark.timeout(240)]


class Read(NamedTuple):
    """What one client read of each answer, from the provider and through the gateway."""

    client: str
    directly: dict[Ask, Any]
    through: dict[Ask, Any]


@pytest.fixture(scope="module", params=CLIENTS)
def read(
    request: pytest.FixtureRequest, provider: Provider, gateway: str, tmp_path_factory: pytest.TempPathFactory
) -> Read:
    programs.need(request.param)
    names = [name for name in provider.recordings if name != conftest.MODEL]
    whole = [Ask(name, stream=False) for name in names if name.endswith(recorded.AS_JSON)]
    streams = [Ask(name, usage) for name in names if not name.endswith(recorded.AS_JSON) for usage in (False, True)]
    folder = tmp_path_factory.mktemp(request.param)
    directly, through = programs.read(request.param, (provider.base_url, gateway), [*streams, *whole], folder)
    return Read(request.param, directly, through)


def _comparable(name: str, seen: dict[str, Any]) -> dict[str, Any]:
    """The part of a reading that must be equal.

    The code of an error is the gateway's own word. An error that is all of a stream reaches the client with its true
    status instead of a 200 (held stream), so there only the text and the fact of an error are compared.
    """
    if name == recorded.AT_ONCE:
        return {"text": seen["text"], "error": bool(seen["error"])}
    error = seen["error"] and {part: value for part, value in seen["error"].items() if part != "code"}
    return {**seen, "error": error}


def _differences(expected: dict[Ask, Any], found: dict[Ask, Any]) -> list[str]:
    return [
        f"{ask.model} (usage {'asked' if ask.usage else 'not asked'}): {part} was {want.get(part)!r}, "
        f"is {got.get(part)!r}"
        for ask in expected
        for want, got in [(_comparable(ask.model, expected[ask]), _comparable(ask.model, found[ask]))]
        for part in sorted({*want, *got})
        if want.get(part) != got.get(part)
    ]


def test_a_client_reads_the_same_through_the_gateway_as_directly(read: Read) -> None:
    differences = _differences(read.directly, read.through)
    unequal = {line.partition(":")[0] for line in differences}
    print(f"{read.client}: {len(read.directly) - len(unequal)}/{len(read.directly)} reads equal")
    assert differences == []


def test_what_the_clients_read_directly_is_worth_comparing(read: Read) -> None:
    failing = {*recorded.broken(), *OWN_LIMITS.get(read.client, ())}
    for stream in (True, False):
        whole = {
            ask.model: seen
            for ask, seen in read.directly.items()
            if ask.model not in failing and ask.usage and ask.stream is stream
        }
        assert len(whole) >= 13
        assert [name for name, seen in whole.items() if not (seen["text"] or seen["calls"])] == []
        assert [name for name, seen in whole.items() if not seen["finish"] or seen["error"]] == []
        assert [name for name, seen in whole.items() if seen["messages"] < 1] == []
        assert sum(bool(seen["calls"]) for seen in whole.values()) >= (2 if read.client in OWN_LIMITS else 3)
        assert sum(bool(seen["usage"]) for seen in whole.values()) >= 10
        assert {name for name, seen in whole.items() if bool(seen["usage"]) is not bool(seen["tokens"])} == set()
    failed = {ask.model: seen for ask, seen in read.directly.items() if ask.model in failing}
    assert [name for name, seen in failed.items() if not seen["error"]] == []
    assert failed["error-in-the-middle"]["text"]


def test_a_difference_in_one_part_of_one_stream_is_seen() -> None:
    ask = Ask("s")
    one = {ask: {"text": "a", "finish": ["stop"], "error": None}}
    assert _differences(one, one) == []
    for part, value in {"finish": [], "usage": {}, "text": "a ", "error": {"kind": "APIError"}}.items():
        assert len(_differences(one, {ask: {**one[ask], part: value}})) == 1


def test_an_error_at_once_may_differ_in_its_status_but_not_in_being_one() -> None:
    def seen(error: object) -> dict[Ask, Any]:
        return {Ask(recorded.AT_ONCE): {"text": "", "error": error}}

    assert _differences(seen({"status": None}), seen({"status": 429})) == []
    assert len(_differences(seen({"status": None}), seen(None))) == 1
