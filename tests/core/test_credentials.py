"""What is taken for a secret, what is not, and what is left in its place."""

from __future__ import annotations

import json
import uuid
from hashlib import sha1, sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.credentials import secrets
from proxy.core.redaction import redact, redacted
from tests.canaries import Canary, canaries
from tests.data import conversations

CANARIES = canaries()


@pytest.mark.parametrize("canary", CANARIES, ids=[canary.kind for canary in CANARIES])
@pytest.mark.parametrize(
    "around", ["{}", "Please note: {}\nand go on.", "\u043f\u0430\u0440\u043e\u043b\u044c \u2026 {} \U0001f511"]
)
def test_a_secret_goes_and_its_kind_is_told(canary: Canary, around: str) -> None:
    shown = redact(around.format(canary.told))
    assert "[redacted: " in shown
    assert canary.core not in shown
    assert canary.core[6:] not in shown
    assert redact(shown) == shown


@pytest.mark.parametrize("canary", CANARIES, ids=[canary.kind for canary in CANARIES])
def test_a_secret_in_the_arguments_of_a_call_goes_and_they_stay_json(canary: Canary) -> None:
    shown = redact(json.dumps({"path": "/srv/a.txt", "text": f"first\n{canary.told}\nlast"}))
    # The longest line as JSON writes it, and as it is read back.
    assert canary.core not in shown
    read = json.loads(shown)
    assert canary.core not in read["text"]
    assert read["path"] == "/srv/a.txt"
    assert read["text"].startswith("first\n") and read["text"].endswith("\nlast")


def test_a_password_under_its_name_in_arguments_goes() -> None:
    assert redact('{"user":"ann","password":"x8-Tr0ub4dor"}') == '{"user":"ann","password":"[redacted: password]"}'


@pytest.mark.parametrize("seed", range(20))
def test_other_secrets_of_the_same_shapes_go_too(seed: int) -> None:
    assert [each.kind for each in canaries(seed) if each.core in redact(each.told)] == []


def test_a_key_that_was_cut_off_goes_as_far_as_it_stands() -> None:
    block = next(canary.secret for canary in CANARIES if canary.kind == "rsa private key")
    for length in (120, 200, 300):
        assert redact(f"id_rsa:\n{block[:length]}") == "id_rsa:\n[redacted: private key]"


ORDINARY = [
    sha1(b"a commit").hexdigest(),
    f"sha256:{sha256(b'a layer').hexdigest()}",
    str(uuid.UUID(int=2**100 + 4711)),
    "call_9aXbT3kQm2LwZr8YtUvN4pQs",
    "toolu_01A2b3C4d5E6f7G8h9J0kLmN",
    "chatcmpl-9f8e7d6c5b4a39281706f5e4d3c2b1a0",
    "res_" + sha1(b"a result").hexdigest()[:26],
    "/srv/weir/0a1b2c3d4e5f60718293a4b5c6d7e8f9/gate_1.yaml",
    "https://example.org/a/b?page=12&session=3#L40",
    "git@github.com:weirgate/weirgate.git at 2026-11-30T17:50:00Z",
    "integrity sha512-" + "Zm9vYmFyYmF6" * 7 + "==",
    "max_tokens=4096, completion_tokens: 128, token_count = 12",
    "token = tokens[0]; secret = os.environ['APP_SECRET']; api_key = settings.api_key_2",
    "password: /run/secrets/db_1, passphrase=./keys/pass_2",
    "password: str = Field(min_length=12)",
    "password=os.getenv('DB_PASSWORD_1'), secret: ${{ secrets.DEPLOY_KEY_2 }}",
    "api_key: <your-api-key-1234567890>, password: ********",
    'click.prompt("Password", hide_input=True, default=None)',
    "'chunk_tokenizer': 'tiktoken:cl100k_base'",
    "secretName: db-credentials-v2, tokenizer: gpt2-medium-355m",
    "The token is expired. The secret is out: basic information about bearer tokens.",
    "-----BEGIN CERTIFICATE-----\nMIIB" + "A1b2" * 20 + "\n-----END CERTIFICATE-----",
    "task-1234567890-abcdefghij0123456789, risk_and_disk-usage-report-2026-11",
    "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 20,
    "",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text
    assert redact(json.dumps(text)) == json.dumps(text)


@pytest.mark.data
def test_recorded_conversations_hold_nothing_that_is_taken_for_a_secret() -> None:
    # Their keys were replaced before they were published: whatever is found is a mistake of ours.
    found: list[tuple[str, str]] = []
    characters = 0
    for conversation in conversations():
        for message in conversation.messages:
            text = json.dumps(message, ensure_ascii=False)
            characters += len(text)
            found += [(kind, text[start:end]) for start, end, kind in secrets(text)]
    print(f"T-SECRETS-FALSE value={len(found)} of {characters} characters {found[:5]}")
    assert found == []


texts = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from([canary.told for canary in CANARIES]),
        st.sampled_from(
            ["password=", "://", "-----BEGIN PRIVATE KEY-----", "\\n", "sk-", "eyJ", '"', "token: ", "\ud800"]
        ),
        st.text("aA1-_.:/=@\"'\\ ", max_size=60),
    ),
    max_size=8,
).map("".join)


@given(texts)
def test_whatever_the_text_redaction_ends_and_changes_nothing_the_second_time(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
    assert redacted(text) is not None


PIECES = ["a", "password=", "://a:", "-----BEGIN PRIVATE KEY-----", "-----END ", "eyJ" + "a" * 13 + ".", "\\n"]
PIECES += ["sk-" + "a" * 16 + " ", "token ", 'secret: "', "A" * 24 + ".", "=" + "b1" * 8, "api_key="]
PIECES += ["hooks.slack.com/services/" + "a" * 16 + "/", "Proc-Type: a "]


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_is_slow_to_look_through(piece: str) -> None:
    # A quadratic search would take minutes here; the bound of the test's run is what fails it.
    text = piece * (1_000_000 // len(piece))
    redact(text)


def test_an_error_loses_more_than_notes_do() -> None:
    digest = sha256(b"anything").hexdigest()
    assert redact(digest) == digest
    assert redacted(f"key {digest}") == "key ***"
    assert redacted("could not connect to postgresql://app:Hb7aaQ9z@db:5432/x") == (
        "could not connect to postgresql://app:***@db:5432/x"
    )
