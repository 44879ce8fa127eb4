"""Names that all weigh the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.core import chain
from proxy.core.lettered import lettered
from proxy.core.measure import estimate


@given(st.binary(min_size=12, max_size=12), st.binary(min_size=12, max_size=12))
def test_names_of_one_length_weigh_the_same_and_tell_their_digests_apart(one: bytes, other: bytes) -> None:
    assert estimate(f"Whole results: res_{lettered(one)}") == estimate(f"Whole results: res_{lettered(other)}")
    assert (lettered(one) == lettered(other)) is (one == other)


@given(st.binary(min_size=1, max_size=32), st.text())
def test_a_reference_weighs_the_same_whatever_the_installations_secret(scope: bytes, text: str) -> None:
    assert estimate(chain.reference(scope, text)) == estimate(chain.reference(b"scope", "text"))
