"""One replaying provider and one gateway in front of it for all tests of this room; the programs are read-only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients import recorded, replay, weir
from tests.scenarios.conftest import figure

__all__ = ["figure"]

MODEL = "some-model"

PLAIN = replay.Recording(
    [
        b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"some-model","choices":'
        b'[{"index":0,"delta":{"role":"assistant","content":"A weir keeps a river "},"finish_reason":null}]}',
        b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"some-model","choices":'
        b'[{"index":0,"delta":{"content":"from overflowing."},"finish_reason":"stop"}]}',
        b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"some-model","choices":[],'
        b'"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21}}',
    ]
)
"""What `MODEL`, the model of the examples in docs/clients, answers."""


@pytest.fixture(scope="session")
def provider() -> Iterator[replay.Provider]:
    with replay.provider({**recorded.streams(), **recorded.bodies(), **recorded.broken(), MODEL: PLAIN}) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(provider: replay.Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with weir.serving(provider.base_url, tmp_path_factory.mktemp("weirgate")) as base_url:
        yield base_url
