"""Who asks, and that nobody else can say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import Forbidden, Unauthorised
from proxy.core.steps import Caller
from proxy.server.auth import Keys, key_digest, keys_of, make_key, well_formed
from proxy.store import KeyRow

PEPPER = bytes(range(32))
ADMIN = b"the-admin-secret"


def row(id: str, secret: bytes, **more: object) -> KeyRow:
    settings = {"tenant": "a", "created_at": 0.0, **more}
    return KeyRow(id=id, digest=key_digest(PEPPER, secret), **settings)  # type: ignore[arg-type]


def bearer(value: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"h"), (b"authorization", b"Bearer " + value), (b"accept", b"*/*")]


@pytest.fixture
def keys() -> Keys:
    rows = [
        row("one", b"first"),
        row("two", b"second", tenant="b", models=("gpt-*", "team/exact")),
        row("old", b"third", revoked_at=1.0),
        row("shut", b"fourth", models=()),
    ]
    return keys_of(rows, PEPPER, admin=key_digest(PEPPER, ADMIN))


def test_each_key_names_its_own_tenant_and_id(keys: Keys) -> None:
    assert keys.authenticate(bearer(b"first")) == Caller(tenant="a", key="one")
    assert keys.authenticate(bearer(b"second")) == Caller(tenant="b", key="two")


def test_the_same_key_is_taken_as_x_api_key_and_in_any_spelling_of_bearer(keys: Keys) -> None:
    one = Caller(tenant="a", key="one")
    assert keys.authenticate([(b"x-api-key", b"first")]) == one
    assert keys.authenticate([(b"authorization", b"bearer   first ")]) == one
    assert keys.authenticate([(b"authorization", b"Bearer"), (b"x-api-key", b"first")]) == one


def test_authorization_wins_over_x_api_key(keys: Keys) -> None:
    both = [(b"x-api-key", b"first"), (b"authorization", b"Bearer second")]
    assert keys.authenticate(both).key == "two"
    with pytest.raises(Unauthorised):
        keys.authenticate([(b"x-api-key", b"first"), (b"authorization", b"Bearer wrong")])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(b"unknown"),
        bearer(b"third"),
        bearer(b"firs"),
        bearer(b"first1"),
        bearer(b"FIRST"),
        bearer(b""),
        bearer("clé".encode()),
        bearer(b"\xff\xfe"),
        bearer(b"first first"),
        bearer(b"first\x00"),
        [(b"authorization", b"first")],
        [(b"authorization", b"Basic Zmlyc3Q=")],
        [(b"authorization", b"Bearerfirst")],
        [(b"authorization", b"Bearer first"), (b"authorization", b"Bearer first")],
        [(b"x-api-key", b"first"), (b"x-api-key", b"first")],
        [(b"x-api-key", "é".encode())],
        [(b"x-api-key", b"")],
    ],
)
def test_anything_else_is_unauthorised(keys: Keys, headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorised) as refusal:
        keys.authenticate(headers)
    assert (refusal.value.status, refusal.value.code) == (401, "invalid_api_key")
    assert "first" not in refusal.value.message


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key"]), st.binary(max_size=80)), max_size=3))
def test_no_header_crashes_the_check_or_opens_the_door(headers: list[tuple[bytes, bytes]]) -> None:
    closed = keys_of([row("one", b"a secret that is no random value")], PEPPER)
    with pytest.raises(Unauthorised):
        closed.authenticate(headers)


def test_unknown_and_revoked_keys_are_told_the_same(keys: Keys) -> None:
    said = set()
    for secret in (b"unknown", b"third"):
        with pytest.raises(Unauthorised) as refusal:
            keys.authenticate(bearer(secret))
        said.add(refusal.value.message)
    assert len(said) == 1


def test_a_gateway_whose_only_key_is_revoked_is_not_open() -> None:
    keys = keys_of([row("one", b"first", revoked_at=1.0)], PEPPER)
    assert not keys.open
    with pytest.raises(Unauthorised):
        keys.authenticate([])


def test_patterns_decide_which_models_a_key_opens(keys: Keys) -> None:
    one, two = Caller(tenant="a", key="one"), Caller(tenant="b", key="two")
    assert keys.allowed(one, "anything/at.all")
    assert keys.allowed(two, "gpt-5")
    assert keys.allowed(two, "team/exact")
    for model in ("xgpt-5", "team/exactly", "team.exact", "GPT-5", "", "*"):
        assert not keys.allowed(two, model)
    assert not keys.allowed(Caller(tenant="a", key="shut"), "gpt-5")
    assert not keys.allowed(Caller(tenant="a", key="two"), "gpt-5"), "an id of another tenant opens nothing"


def test_open_mode_keeps_people_with_different_keys_apart() -> None:
    keys = keys_of([], PEPPER)
    assert keys.open
    assert keys.authenticate([]) == Caller(tenant="local", key="open")
    assert keys.authenticate(bearer(b"")) == Caller(tenant="local", key="open")
    ann, bob = keys.authenticate(bearer(b"sk-ann")), keys.authenticate(bearer(b"sk-bob"))
    assert ann != bob
    assert ann == keys.authenticate([(b"x-api-key", b"sk-ann")])
    assert ann.tenant == "local"
    assert ann.key.startswith("client-")
    assert len(ann.key) == len("client-") + 12
    assert keys_of([], bytes(32)).authenticate(bearer(b"sk-ann")) != ann, "the id says nothing without the secret"
    assert keys.allowed(ann, "any")
    with pytest.raises(Unauthorised):
        keys.authenticate(bearer(b"\xff"))


def test_two_keys_with_one_secret_or_one_id_are_an_error() -> None:
    with pytest.raises(ValueError, match="same secret"):
        keys_of([row("one", b"first"), row("two", b"first", tenant="b")], PEPPER)
    with pytest.raises(ValueError, match="'one'"):
        keys_of([row("one", b"first"), row("one", b"second")], PEPPER)
    assert len(keys_of([row("one", b"first"), row("one", b"second", tenant="b")], PEPPER).callers) == 2


def test_the_admin_secret_opens_the_admin_interface_and_nothing_else_does(keys: Keys) -> None:
    keys.authorise_admin(bearer(ADMIN))
    for headers in ([], bearer(b"first"), bearer(ADMIN + b"1"), bearer(b"\xff")):
        with pytest.raises(Unauthorised):
            keys.authorise_admin(headers)
    with pytest.raises(Unauthorised):
        keys.authenticate(bearer(ADMIN))
    with pytest.raises(Forbidden):
        keys_of([], PEPPER).authorise_admin(bearer(ADMIN))


def test_a_digest_depends_on_every_byte_and_on_the_pepper() -> None:
    whole = b"x" * 500
    assert len({key_digest(PEPPER, whole), key_digest(PEPPER, whole[:-1]), key_digest(bytes(32), whole)}) == 3
    assert len(key_digest(PEPPER, whole)) == 32


def test_a_new_key_is_random_well_formed_and_accepted() -> None:
    made = [make_key() for _ in range(200)]
    assert len({id for id, _ in made}) == len({secret for _, secret in made}) == 200
    id, secret = made[0]
    assert secret.startswith("wg-")
    assert secret[3:].isalnum()
    assert len(secret) == 3 + 43 + 6
    assert all(well_formed(secret) for _, secret in made)
    keys = keys_of([row(id, secret.encode())], PEPPER)
    assert keys.authenticate(bearer(secret.encode())).key == id


@given(st.integers(0, 48), st.sampled_from("0Az"))
def test_a_slip_in_a_key_is_noticed(place: int, wrong: str) -> None:
    _, secret = make_key()
    at = 3 + place
    slipped = secret[:at] + wrong + secret[at + 1 :]
    assert well_formed(slipped) is (slipped == secret)


@pytest.mark.parametrize("text", ["", "wg-", "sk-" + "0" * 49, "wg-" + "0" * 48, "wg-" + "é" * 49])
def test_what_was_not_made_here_is_not_well_formed(text: str) -> None:
    assert not well_formed(text)
