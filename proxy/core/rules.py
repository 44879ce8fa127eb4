"""Rules that the user stated in passing: found by their words and form, in many languages, and kept word for word.

A request that is cut or only counted takes its rules with it ("... and never push to main"), and an agent that has
forgotten one breaks it (research/compaction.md 3a: 0 % of violations with the rule in sight, 30 % without). No model is
asked. A sentence too many costs some tokens; so the list is bounded, the clearest and the newest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from proxy.core.fence import unfenced
from proxy.core.measure import estimate
from proxy.core.notes import Pin

LOOKED_AT: Final = 20_000
"""Characters of one message, half from each end: who states a rule in passing does it around what he pastes."""
_EDGE: Final = 400
"""Characters from either end of a message that are taken for the user's own."""
_LEAST: Final = 5
_MOST: Final = 480
"""Characters of a sentence that is listed; longer ones are pasted text."""
_HINT_MOST: Final = 200
"""Characters of a sentence that only hints at a rule."""
_HINTS_PART: Final = 4
"""Those take one part in so many of the room."""
_FRONT: Final = 4
"""Words of a sentence among which an order begins."""
_MARK: Final = 5
"""Estimated tokens of the mark in front of a rule."""

RULE, PERHAPS, HINT = 3, 2, 1

_WORDS: Final = frozenset(
    """always never must mustn't forbidden prohibited exclusively
    immer nie niemals stets keinesfalls niemand muss müssen musst müsst darf darfst dürfen dürft verboten
    ausschließlich ausschliesslich grundsätzlich unbedingt
    toujours jamais désormais dorénavant interdit interdite uniquement exclusivement impérativement doit doivent
    siempre nunca jamás prohibido prohibida únicamente exclusivamente debe debes deben obligatorio
    sempre mai vietato devi deve devono esclusivamente jamais proibido deves devem apenas
    всегда никогда нельзя запрещено запрещается обязательно впредь отныне должен должна должно должны исключительно
    aldrig alltid måste endast nikdy vždy musí nesmí nesmíš pouze jangan selalu harus dilarang luôn cấm""".split()
)
_HINTS: Final = frozenset(
    """only don't dont avoid ensure nur soll sollst sollen sollte seulement évite évitez solo sólo solamente evita
    только soltanto somente hanya chỉ bara jen""".split()
)
_PHRASES: Final = (
    "do not ", "don't ever", "may not ", "not allowed", "no circumstances", "from now on", "no matter what",
    "at all times", "without exception", "make sure", "on no account",
    "auf keinen fall", "keinen umständen", "ab jetzt", "ab sofort", "von nun an", "ohne ausnahme", "bitte nicht",
    "bitte kein", "bitte nur",
    "en aucun cas", "aucun prétexte", "il faut", "il ne faut", "partir de maintenant", "sans exception", "tu dois",
    "vous devez", "ne dois pas", "ne devez pas",
    "de ahora en adelante", "a partir de ahora", "ninguna circunstancia", "ningún caso", "sin excepción", "tienes que",
    "in nessun caso", "d'ora in poi", "senza eccezioni", "em nenhum caso", "em hipótese alguma", "a partir de agora",
    "ни в коем случае", "с этого момента", "без исключения", "без исключений", "ни при каких",
    "không bao giờ", "bắt buộc", "får inte", "under inga omständigheter", "v žádném případě",
)  # fmt: skip
_WRITTEN: Final = (
    "绝不", "絕不", "绝对不", "永远", "永遠", "务必", "務必", "必须", "必須", "不要", "不得", "禁止", "千万", "一律",
    "始终", "始終", "总是", "總是", "只能", "不许", "严禁", "嚴禁", "切勿", "请勿", "不准", "从现在起",
    "必ず", "絶対に", "決して", "常に", "しないで", "ないでください", "てはいけ", "てはなら", "なければなら",
    "今後は", "厳禁", "絶対", "절대", "항상", "반드시", "금지", "하지 마", "지 마세요", "지 말", "앞으로는", "무조건",
)  # fmt: skip
"""Of scripts without blanks between words, or with endings on every one."""
_WRITTEN_HINTS: Final = ("不能", "仅", "只", "のみ", "だけ", "해야", "해 주세요")
_OPENINGS: Final = re.compile(
    r"(?:(?:please|also|and|but|so|then|bitte|und|aber|merci de|por favor|y|et|mais|pero|пожалуйста|и|но)[, ]+){0,2}"
    r"(?:do not|don't|dont|never|always|only|no [a-z]|keep|nie|nur|kein\w*|immer|ne |n'|не |no [a-z]+[eé]s\b|nunca|solo"
    r"|sólo|toujours|siempre|никогда|всегда|только|non )",
    re.IGNORECASE,
)
"""How an order begins."""
_TOLD: Final = re.compile(
    r"(?:it|this|that|there|he|she|they|we|i|i'm|it's|es|das|dies|er|sie|wir|ich|il|elle|c'est|ça|cela|je|on|nous"
    r"|eso|esto|ella|yo|nosotros|он|она|оно|это|они|мы|я)\b",
    re.IGNORECASE,
)
"""How somebody begins who tells what happens instead."""
_SENTENCE: Final = re.compile(
    r"(?<=[^\W\d_]{2}[.!?])[\"')\]\u00bb\u201d]?[ \t]+|(?<=[)\d\"'\]][.!?])[ \t]+|(?<=[。！？])"
    r"|(?<=[)\]])[ \t]+(?=[A-Z\u00c0-\u00de\u0410-\u042f])"
)
_TAG: Final = re.compile(r"^(?:</?[A-Za-z][^<>]{0,200}>[ \t]*)+|(?:[ \t]*</?[A-Za-z][^<>]{0,200}>)+$")
_LIST: Final = re.compile(r"(?:[-*\u2022\u2013]|\(?\d{1,2}[.)]|#{1,6})[ \t]+")
_CODE: Final = re.compile(
    r"[{};]$|^(?:[+|<>$@]|//|/\*|\*/|import |from \S+ import|def |class |function |#!|\d+[:|\t\u2192])|=>|::|=="
)
_WORD: Final = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_KEYS: Final = frozenset(max(_WORD.findall(phrase), key=len) for phrase in _PHRASES)
"""A word of each phrase, so that most sentences are not searched for any."""


def standing(requests: Iterable[tuple[int, str]], budget: int, present: str = "") -> tuple[Pin, ...]:
    """The rules in `requests` (turn, text), in order, within `budget` estimated tokens.

    Those that stand word for word in `present`, the rest of the prompt, are not listed again; one that was stated
    again keeps its rank and stands in its last turn.
    """
    found: dict[str, tuple[int, int, int]] = {}
    for place, (turn, text) in enumerate(requests):
        for strength, sentence in stated(text):
            if sentence not in present:
                first = found.pop(sentence, (0, place, turn))
                found[sentence] = (max(strength, first[0]), first[1], turn)
    ranked = sorted(found, key=lambda sentence: found[sentence][:2], reverse=True)
    kept: dict[str, int] = {}
    left, hints = budget, budget // _HINTS_PART
    for sentence in ranked:
        strength, _, turn = found[sentence]
        price = estimate(sentence) + _MARK
        if price <= left and (strength > HINT or price <= hints):
            kept[sentence] = turn
            left -= price
            hints -= price if strength == HINT else 0
    return tuple(Pin(turn=kept[sentence], text=sentence) for sentence in found if sentence in kept)


def stated(text: str) -> Iterator[tuple[int, str]]:
    """Pairs (RULE, PERHAPS or HINT, sentence) of what reads like a rule in `text`, word for word and in order. One less
    in the middle of a long text, which somebody else may have written."""
    if len(text) > LOOKED_AT:
        text = text[: LOOKED_AT // 2] + "\n\n" + text[-LOOKED_AT // 2 :]
    text = unfenced(text)
    for at, sentence in _sentences(text):
        strength = _strength(sentence)
        if strength > HINT and min(at, len(text) - at - len(sentence)) > _EDGE:
            strength -= 1
        if strength > HINT or (strength and len(sentence) <= _HINT_MOST):
            yield strength, sentence


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of its prose, with about where they stand; what is fenced, quoted or looks like code is none."""
    fenced = False
    at = 0
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        line = line.strip()
        if line.startswith("```"):
            line = line[3:] if fenced else ""
            fenced = not fenced
        elif fenced:
            continue
        line = _TAG.sub("", line)
        if line and not _CODE.search(line):
            for piece in _SENTENCE.split(line):
                bare = piece.strip()
                mark = _LIST.match(bare)
                bare = bare[mark.end() :] if mark else bare
                if _LEAST <= len(bare) <= _MOST:
                    yield start + line.find(bare), bare


def _strength(sentence: str) -> int:
    if sentence.endswith(("?", "？")):
        return 0
    lowered = sentence.lower().replace("\u2019", "'")
    written = not lowered.isascii()
    if written and any([each in lowered for each in _WRITTEN]):
        return RULE
    words = _WORD.findall(lowered)
    said = _WORDS.intersection(words)
    ordered = _OPENINGS.match(lowered) is not None
    phrased = [] if _KEYS.isdisjoint(words) else [phrase for phrase in _PHRASES if phrase in lowered]
    if said or phrased:
        told = _TOLD.match(lowered) is not None and not lowered.startswith(tuple(phrased))
        front = ordered or phrased or not said.isdisjoint(words[:_FRONT])
        return RULE if front and not told else PERHAPS
    if ordered:
        return PERHAPS
    if not _HINTS.isdisjoint(words) or (written and any([each in lowered for each in _WRITTEN_HINTS])):
        return HINT
    return 0
