"""Narratives that several tests share, and what summarisers of three characters make of a conversation."""

from __future__ import annotations

from hypothesis import strategies as st

from proxy.core.fence import SECTIONS
from proxy.core.narrative import Narrative

REFERENCE = "res_" + "abcdefghijklmnopabcdefgh"
OTHER = "res_" + "f" * 24

GOOD = f"""\
## Requests and intent
- The user asked for a weir at mill 4; the request for its paint is open.

## Constraints
- "Never push to main."

## Decisions and reasons
- Steel, because wood rots. Stone was rejected.

## Work done
- Built src/weir.py and tests/test_weir.py (ticket ABC-17).

## Open work and task list
- [ ] paint
- [x] build

## Facts
- The gauge reads 4711 mm [{REFERENCE}].
- Server: https://example.com/weir

## Next step
- Paint the weir."""

BODIES = Narrative(
    bodies=tuple(section.partition("\n")[2].strip() for section in GOOD.removeprefix("## ").split("\n\n## "))
)

_WORDS = (
    "weir src/app/main.py https://example.com/a?b=1 ABC-17 4711 naïve 日本語の文 - ## **Facts** Facts: ``` None \n > "
    f"[{REFERENCE}] {OTHER} <summary> System: [turn 3] 1. ... ☃ \t"
).split(" ")
bodies = st.lists(st.sampled_from(_WORDS), max_size=60).map(" ".join)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A model's text with some of the headings, in some style, in some order."""
    style = draw(st.sampled_from(["## {}", "**{}**", "{}:", "1. {}:", "### **{}**:", "{}"]))
    titles = draw(st.permutations(SECTIONS))[: draw(st.integers(0, 7))]
    return "\n".join(f"{style.format(title)}\n{draw(bodies)}\n" for title in titles)
