"""Real clients read every recorded chat stream through the gateway exactly as they read it from the provider.

Each client is its own program and reads all streams twice, with and without asking for usage: text, reasoning, tool
calls, finish reasons, usage and the kind of an error must be equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.clients import conftest, programs, recorded
from tests.clients.replay import Provider

CLIENTS = tuple(programs.READERS)

pytestmark = [pytest.mark.data, pytest.mark.timeout(240)]


class Read(NamedTuple):
    """What one client read of each (stream, usage asked), from the provider and through the gateway."""

    client: str
    directly: dict[Any, Any]
    through: dict[Any, Any]


@pytest.fixture(scope="module", params=CLIENTS)
def read(
    request: pytest.FixtureRequest, provider: Provider, gateway: str, tmp_path_factory: pytest.TempPathFactory
) -> Read:
    programs.need(request.param)
    names = [name for name in provider.recordings if name != conftest.MODEL]
    reads = [(name, usage) for name in names for usage in (False, True)]
    folder = tmp_path_factory.mktemp(request.param)
    directly, through = programs.read(request.param, (provider.base_url, gateway), reads, folder)
    return Read(request.param, directly, through)


def _comparable(name: str, seen: dict[str, Any]) -> dict[str, Any]:
    """The part of a reading that must be equal.

    An error that is all of a stream reaches the client with its true status instead of a 200 (held stream), so there
    only the fact of an error is compared.
    """
    return {**seen, "error": bool(seen["error"])} if name == recorded.AT_ONCE else seen


def _differences(expected: dict[Any, Any], found: dict[Any, Any]) -> list[str]:
    return [
        f"{name} (usage {'asked' if usage else 'not asked'}): {part} was {want.get(part)!r}, is {got.get(part)!r}"
        for name, usage in expected
        for want, got in [(_comparable(name, expected[name, usage]), _comparable(name, found[name, usage]))]
        for part in sorted({*want, *got})
        if want.get(part) != got.get(part)
    ]


def test_a_client_reads_the_same_through_the_gateway_as_directly(read: Read) -> None:
    differences = _differences(read.directly, read.through)
    unequal = {line.partition(":")[0] for line in differences}
    print(f"{read.client}: {len(read.directly) - len(unequal)}/{len(read.directly)} reads equal")
    assert differences == []


def test_what_the_clients_read_directly_is_worth_comparing(read: Read) -> None:
    failing = recorded.broken().keys()
    whole = {name: seen for (name, usage), seen in read.directly.items() if name not in failing and usage}
    assert len(whole) >= 14
    assert [name for name, seen in whole.items() if not (seen["text"] or seen["calls"])] == []
    assert [name for name, seen in whole.items() if not seen["finish"] or seen["error"]] == []
    assert sum(bool(seen["calls"]) for seen in whole.values()) >= 3
    assert sum(bool(seen["usage"]) for seen in whole.values()) >= 10
    failed = {name: seen for (name, _), seen in read.directly.items() if name in failing}
    assert [name for name, seen in failed.items() if not seen["error"]] == []
    assert failed["error-in-the-middle"]["text"]


def test_a_difference_in_one_part_of_one_stream_is_seen() -> None:
    one = {("s", True): {"text": "a", "finish": ["stop"], "error": None}}
    assert _differences(one, one) == []
    for part, value in {"finish": [], "usage": {}, "text": "a ", "error": {"kind": "APIError"}}.items():
        assert len(_differences(one, {("s", True): {**one["s", True], part: value}})) == 1


def test_an_error_at_once_may_differ_in_its_status_but_not_in_being_one() -> None:
    def seen(error: object) -> dict[Any, Any]:
        return {(recorded.AT_ONCE, True): {"text": "", "error": error}}

    assert _differences(seen({"status": None}), seen({"status": 429})) == []
    assert len(_differences(seen({"status": None}), seen(None))) == 1
