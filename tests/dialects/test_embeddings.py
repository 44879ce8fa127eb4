"""An embeddings request is forwarded as it came, with the upstream's name for its model."""

from __future__ import annotations

import json

import pytest

from proxy.core.errors import Malformed
from proxy.core.usage import Usage
from proxy.dialects.embeddings import decode_embeddings, read_embeddings_usage, renamed


def test_the_same_name_forwards_the_clients_own_bytes() -> None:
    body = b'{ "input": ["a", "b"], "model": "m", "user": "u", "dimensions": 8 }'
    call = decode_embeddings(body)
    assert (call.model, call.end_user) == ("m", "u")
    assert renamed(call, "m") is body


def test_another_name_changes_the_name_and_nothing_else() -> None:
    body = rb'{"input":"a \ud83d","model":"m","x":{"y": 1.50},"\u00e9":null}'
    sent = renamed(decode_embeddings(body), 'other "one"')
    assert rb'"input":"a \ud83d"' in sent
    assert b'{"y": 1.50}' in sent
    assert json.loads(sent) == {**json.loads(body), "model": 'other "one"'}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b'{"input":"a"}', "missing_required_parameter", "model"),
        (b'{"model":"","input":"a"}', "missing_required_parameter", "model"),
        (b'{"model":1,"input":"a"}', "invalid_type", "model"),
        (b'{"model":"m"}', "missing_required_parameter", "input"),
        (b'{"model":"m","input":null}', "missing_required_parameter", "input"),
        (b'{"model":"m","input":"a","user":7}', "invalid_type", "user"),
        (b'{"model":"m","input":"a","api_base":"http://x"}', "unknown_parameter", "api_base"),
        (b'{"model":"m","input":"a","model":"n"}', "invalid_json", None),
        (b"nonsense", "invalid_json", None),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(Malformed) as caught:
        decode_embeddings(body)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_formatted_body_whose_input_is_the_word_input_is_sound() -> None:
    assert decode_embeddings(b'{"input": "input", "model": "m"}').model == "m"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"{}", b'{"usage":null}', b'{"usage":[]}', b"[" * 100_000])
def test_an_answer_without_usage_states_none(body: bytes) -> None:
    assert read_embeddings_usage(body) is None


def test_the_usage_of_an_answer_is_read() -> None:
    assert read_embeddings_usage(b'{"usage":{"prompt_tokens":8,"total_tokens":8}}') == Usage(input=8)
