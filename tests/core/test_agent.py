"""Who may see an agent or a skill."""

from __future__ import annotations

import pytest

from proxy.core.agent import visible
from tests.core.stacks import ANNAS, TONE, an_agent


@pytest.mark.parametrize(
    ("patterns", "name", "seen"),
    [
        (("*",), None, True),
        (("*",), "anna", True),
        (("anna",), "anna", True),
        (("anna",), "ann", False),
        (("anna",), None, False),
        (("a*", "bob"), "anna", True),
        (("a*", "bob"), "bob", True),
        (("a*",), None, False),
        ((), "anna", False),
        ((), None, False),
    ],
)
def test_who_has_no_name_fits_the_star_alone(patterns: tuple[str, ...], name: str | None, seen: bool) -> None:
    assert visible(patterns, name) is seen


def test_a_skill_is_for_its_users() -> None:
    assert TONE.seen_by(None)
    assert ANNAS.seen_by("anna")
    assert not ANNAS.seen_by("bob")
    assert not ANNAS.seen_by(None)


def test_an_agent_is_for_users_of_its_tenants() -> None:
    agent = an_agent(tenants=("acme",), users=("anna",))
    assert agent.seen_by("acme", "anna")
    assert not agent.seen_by("acme", None)
    assert not agent.seen_by("other", "anna")
    assert an_agent().seen_by("any", None)
