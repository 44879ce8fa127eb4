"""Facts and rules that nobody announces, put into recorded conversations at every tenth of their length.

A fact is an identifier that occurs once and nowhere else: in the middle of a tool's output, in a sentence of the model,
in an aside of the user. A rule is a sentence of the user beside what he asks for.
"""

from __future__ import annotations

import copy
from hashlib import blake2b
from typing import Any, Final, NamedTuple

TENTHS: Final = 10
KINDS: Final = ("result", "model", "user")
_ROLES: Final = {"result": "tool", "model": "assistant", "user": "user"}

# Where `{n}` and `{h}` stand, digits and letters of the fact's own go; in every sentence the identifier is one piece.
_FORMS: Final = (
    "build/out/weir_{h}.bin",
    "SLUICE-{n}",
    "https://wiki.example.net/p/{h}?rev={n}",
    "{h}{n}{h}",
    "10.{a}.{b}.{c}:8443",
    "{n}.25 m3/s",
    "gate_{h}_limit",
    "v{a}.{b}.{n}-rc1",
    "ops+{h}@example.org",
    "2026-0{d}-1{d}T0{d}:{n2}:07Z",
)
_RESULT: Final = ("cached as {fact}", "  warn: falling back to {fact} (unused)", "ref={fact} state=ok", "see {fact}")
_MODEL: Final = (
    "I noticed {fact} on the way, which looks right.",
    "That also explains where {fact} came from.",
    "The older one, {fact}, stays as it is.",
)
_USER: Final = (
    "(the last time somebody looked at this it was about {fact}, if that helps)",
    "Somewhere in the mail from March they mention {fact} too.",
    "My colleague had the same thing with {fact}.",
)

RULES: Final = (
    ("en", "Never push to the main branch without asking me."),
    ("en", "Please keep every file under 500 lines, no matter what."),
    ("de", "Bitte ändere auf keinen Fall etwas im Ordner vendor."),
    ("de", "Kommentare müssen immer auf Deutsch sein."),
    ("fr", "N'utilise jamais de bibliothèque sous licence GPL."),
    ("fr", "Il faut que chaque fonction ait un test."),
    ("es", "No borres nunca los registros del servidor."),
    ("es", "A partir de ahora responde siempre con tres frases como máximo."),
    ("ru", "Ни в коем случае не трогай таблицу платежей."),
    ("ru", "Всегда спрашивай меня перед запуском миграции."),
    ("zh", "不要修改生产环境的配置文件。"),
    ("zh", "所有日期必须使用ISO格式。"),
)


class Fact(NamedTuple):
    """`text` stands in message `index`, which is of `kind`."""

    kind: str
    text: str
    index: int


class Planted(NamedTuple):
    """`messages` with what was planted; `rules` are (message, language, sentence)."""

    messages: list[dict[str, Any]]
    facts: tuple[Fact, ...]
    rules: tuple[tuple[int, str, str], ...]


def planted(id: str, messages: list[dict[str, Any]]) -> Planted:
    """A copy of the messages of conversation `id` with facts and rules in it."""
    made = copy.deepcopy(messages)
    facts: list[Fact] = []
    for tenth in range(TENTHS):
        for kind in KINDS:
            index = _place(made, _ROLES[kind], (tenth + 0.5) / TENTHS, {fact.index for fact in facts})
            if index is not None:
                text = _fact(id, tenth, kind)
                made[index]["content"] = _put(made[index]["content"], kind, tenth, text)
                facts.append(Fact(kind, text, index))
    users = [index for index, item in enumerate(made) if _fits(item, "user")]
    rules: list[tuple[int, str, str]] = []
    for number, (language, rule) in enumerate(RULES):
        index = users[len(users) * number // len(RULES)]
        words = _words(made[index]["content"])
        first, *rest = words.split("\n", 1)
        inside = "\n".join([f"{first} {rule}", *rest] if " " in first else [rule, first, *rest])
        texts = (f"{words} {rule}", f"{rule} {words}", inside)
        made[index]["content"] = texts[number % 3]
        rules.append((index, language, rule))
    return Planted(made, tuple(facts), tuple(rules))


def _fact(id: str, tenth: int, kind: str) -> str:
    drawn = blake2b(f"{id} {tenth} {kind}".encode(), digest_size=8).hexdigest()
    number = int(drawn, 16)
    return _FORMS[(tenth + KINDS.index(kind) * 3) % len(_FORMS)].format(
        h=drawn[:6],
        n=10_000 + number % 89_999,
        n2=10 + number % 49,
        a=number % 200 + 20,
        b=number // 7 % 200 + 20,
        c=number // 11 % 200 + 20,
        d=number % 8 + 1,
    )


def _place(messages: list[dict[str, Any]], role: str, share: float, taken: set[int]) -> int | None:
    """The nearest free message of `role` to this share of the conversation."""
    fit = [index for index, item in enumerate(messages) if index not in taken and _fits(item, role)]
    middle = share * len(messages)
    return min(fit, key=lambda index: abs(index - middle), default=None)


def _fits(item: dict[str, Any], role: str) -> bool:
    return item["role"] == role and bool(_words(item.get("content")).strip())


def _words(content: Any) -> str:
    """What is said as plain text; "" where it is not plain."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") == "text":
        return str(content[0]["text"])
    return ""


def _put(content: Any, kind: str, tenth: int, fact: str) -> str:
    text = _words(content)
    if kind == "result":
        lines = text.split("\n")
        lines.insert(len(lines) // 2, _RESULT[tenth % len(_RESULT)].format(fact=fact))
        return "\n".join(lines)
    sentence = (_MODEL if kind == "model" else _USER)[tenth % 3].format(fact=fact)
    at = text.find(". ", len(text) // 2) + 1
    return f"{text[:at]} {sentence}{text[at:]}" if at and tenth % 2 else f"{text} {sentence}"
