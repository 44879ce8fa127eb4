"""What looks like a credential vanishes from other people's words; the words stay."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.redaction import REDACTED, redacted

KEYS = [
    "sk-abcdefghijklmnop1234",
    "sk-proj-Ab12_cd34-ef56gh78ij90kl",
    "sk-ant-api03-abc_DEF-123456789",
    "sk-********************abcd",
    "sk_live_51HxAbCdEfGhIjKl",
    "rk_test_51HxAbCdEfGh",
    "gsk_Ab1Cd2Ef3Gh4Ij5Kl6",
    "xai-Ab1Cd2Ef3Gh4Ij5Kl6",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh",
    "r8_Ab1Cd2Ef3Gh4Ij5Kl6",
    "ghp_Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8",
    "github_pat_11ABCDEFG0abcdefghij",
    "glpat-Ab1Cd2Ef3Gh4Ij5Kl6Mn",
    "xoxb-123456789012-abcdefABCDEF",
    "wg_0123456789abcdef",
    "key-0123456789abcdef0123456789abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1B2C3D4E5F6G7H8I9J0KLMNOPQRSTUVW",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP",
    "0123456789abcdef0123456789abcdef",
    "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv_w-x",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "around", ["{}", "Incorrect API key provided: {}.", "'{}'", '{{"key":"{}"}}', "?api_key={}&x", "`{}`"]
)
def test_a_key_of_a_known_shape_vanishes(key: str, around: str) -> None:
    shown = redacted(around.format(key))
    assert REDACTED in shown
    assert key not in shown
    assert key[8:] not in shown


@pytest.mark.parametrize("token", ["abc123DEF", "dXNlcjpwYXNz", "dXNlcjpwYXNzd29yZA==", "a" * 24, "ab.cd-ef~1/x="])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BASIC", "Basic "])
def test_what_follows_an_authorization_scheme_vanishes(scheme: str, token: str) -> None:
    assert redacted(f"header was {scheme} {token} !") == f"header was {REDACTED} !"


@pytest.mark.parametrize(
    "text",
    [
        "The model `gpt-4o-realtime-preview-2024-12-17` does not exist",
        "The model 'gpt-4o-realtime-preview-2024-12-17' does not exist",
        'model "claude-3-7-sonnet-20250219-extended" is not a key-value-store',
        "us.anthropic.claude-3-7-sonnet-20250219-v1:0",
        "meta-llama/Llama-3.3-70B-Instruct-Turbo-Free",
        "basic information about keyboards, skateboarding and skeleton_code",
        "Bearer authentication is required; the key expired_yesterday",
        "request id 550e8400-e29b-41d4-a716-446655440000",
        "messages[3].tool_calls[0].function.arguments must be a string",
        "prompt is too long: 9000 tokens > 8192 maximum",
        "unknown parameter: max_completion_tokens_for_this_request",
        "scikit sk-learn key-value hf_hub pk_column",
        "Überlänge: zu viele Zeichen",
    ],
)
def test_ordinary_words_and_names_stay_readable(text: str) -> None:
    assert redacted(text) == text


def test_the_text_becomes_one_short_line() -> None:
    assert redacted(" a\n\tb\r\n c ") == "a b c"
    assert redacted("ab " * 400, 20) == "ab ab ab ab ab ab..."
    assert redacted("") == ""


def test_a_key_at_the_cut_does_not_peep_out() -> None:
    key = "sk-abcdefghijklmnop1234"
    for before in range(60):
        assert "abcdef" not in redacted("x " * before + key, 50)


@given(st.text(string.ascii_letters + string.digits, min_size=24, max_size=60), st.text("ab \n:=\"'(", max_size=20))
def test_a_key_vanishes_wherever_it_stands(secret: str, before: str) -> None:
    assert secret not in redacted(f"{before} sk-{secret} and more")


@given(st.text(max_size=500), st.integers(10, 80))
def test_any_text_becomes_at_most_so_many_characters_on_one_line(text: str, most: int) -> None:
    shown = redacted(text, most)
    assert len(shown) <= most
    assert "\n" not in shown
    assert "\r" not in shown
