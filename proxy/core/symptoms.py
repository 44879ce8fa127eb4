"""How an answer looks that is no notes: a call written as text, a refusal, the work carried on, the prompt repeated.

Structure first (marks of ours, who is made to speak, how much is code, how much is word for word), so that it holds in
any language; phrases only where nothing else tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from proxy.core.headings import Parsed
from proxy.core.measure import estimate
from proxy.core.narrative import NEXT, rendered

_SHORT: Final = 900
"""Characters of a refusal at most."""
_LINE: Final = 24
"""Characters of a line that can be called repeated."""
_REPEATED: Final = 0.6
"""Of the characters of an answer: word for word from the record, and it is the record."""
_ENOUGH: Final = 200
_OUR_LINES: Final = 2
_CODE_SHARE: Final = 0.5
_PREAMBLE_SHARE: Final = 0.4
_PREAMBLE: Final = 400
_LAST_SHARE: Final = 0.5
_LAST: Final = 300
"""Estimated tokens of a next step that is no longer one."""

_SORRY: Final = re.compile(
    r"[\s*_#\"']{0,8}(?:I['’]?m (?:so |very )?sorry|I am sorry|Sorry\b|I (?:can(?:['’]t|not| not)|won['’]t|am unable"
    r"|must decline|apologi[sz]e)|I['’]m (?:unable|not able)|As an AI\b|Unfortunately\b"
    r"|Es tut mir leid|Tut mir leid|Entschuldig|Ich kann (?:das|diese|dabei|hier|leider)"
    r"|D[ée]solé|Je (?:suis désol|ne peux|regrette)|Lo siento|No puedo|Desculpe|Sinto muito|Não posso|Mi dispiace"
    r"|Non posso|Извин|Простите|Я не могу|К сожалению|抱歉|对不起|對不起|很抱歉|我无法|我無法|我不能"
    r"|申し訳|すみません|ごめん|죄송|미안)",
    re.IGNORECASE,
)
_TOOL_SYNTAX: Final = re.compile(
    r"</?(?:tool_calls?|function_calls?|tool_use|tool_code|invoke|antml:\w+)\b|<function[=\s]|<parameter[=\s]"
    r"|<\|(?:tool|python_tag|channel|call)|<\uff5ctool|\[(?:TOOL_CALLS?|tool_calls?)\]|^[ \t]*```tool_(?:code|call)"
    r"|^[ \t]*\{\s*\"(?:name|function|tool|tool_name|recipient_name|action)\"\s*:\s*(?:\{\s*\"name\""
    r"|\"[\w.:/-]{1,80}\"\s*,\s*\"(?:arguments|parameters|input|args|action_input)\")"
    r"|^[ \t]*Action\s*:[^\n]{0,200}\n+[ \t]*Action Input\s*:",
    re.MULTILINE,
)
_CODE: Final = re.compile(r"`[^`\n]{1,200}`")
_BLOCK: Final = re.compile(r"^[ \t]*```[^\n]*\n.*?(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_USERS: Final = "user|human|the user|用户|用戶|ユーザー|사용자|пользователь|benutzer|nutzer|utilisateur|usuario|usuário"
_MODELS: Final = (
    "assistant|model|ai|the model|bot|助手|助理|アシスタント|어시스턴트|ассистент|модель|assistent|asistente|assistente"
)
_SPEAKER: Final = re.compile(
    rf"^[ \t]*[#*_<\[|]{{0,4}}[ \t]{{0,4}}(?:(?P<user>{_USERS})|{_MODELS})[\]>*_|]{{0,4}}[ \t]*[:\uff1a]"
    r"|^[ \t]*<\|?(?:im_start\|>|start_header_id\|>|start_of_turn>)?(?:(?P<user2>user|human)|assistant|model)\b"
    r"|^\[[^\]\n]{0,12}turn \d+, (?:(?P<user3>the user)|the model|result of)",
    re.IGNORECASE | re.MULTILINE,
)


def declines(text: str) -> bool:
    """Whether a short text is a refusal to answer."""
    return len(text) <= _SHORT and _SORRY.match(text) is not None


def tool_syntax(text: str) -> bool:
    """Whether a tool call is written out in `text`; quoted in code marks it is only spoken of."""
    return _TOOL_SYNTAX.search(_CODE.sub("", text)) is not None


def continues(text: str, parsed: Parsed) -> bool:
    """Whether `text` takes part in the conversation instead of telling it: both sides speak in it, most of it is code,
    much was done before the notes, or the next step is carried out."""
    prose = _BLOCK.sub("", text)
    if len({found.lastgroup is not None for found in _SPEAKER.finditer(prose)}) > 1:
        return True
    if len(text) > _ENOUGH and len(text) - len(prose) > _CODE_SHARE * len(text):
        return True
    if parsed.headings and parsed.preamble > max(_PREAMBLE, _PREAMBLE_SHARE * len(text)):
        return True
    last = estimate(parsed.narrative.bodies[NEXT])
    return last > max(_LAST, _LAST_SHARE * estimate(rendered(parsed.narrative)))


def repeats(text: str, mark: str, ours: Iterable[str], record: Iterable[str], previous: str) -> bool:
    """Whether `text` is made of what it was shown: our mark or our instructions are in it, or most of it stands in the
    record line by line. What the notes before said may be said again."""
    if mark in text:
        return True
    if sum(len(line) > _LINE and line in text for line in {line.strip(" -.") for line in ours}) >= _OUR_LINES:
        return True
    shown = set(_lines("\n".join(record))) - set(_lines(previous))
    said = list(_lines(text))
    whole = sum(map(len, said))
    return whole >= _ENOUGH and sum(len(line) for line in said if line in shown) > _REPEATED * whole


def _lines(text: str) -> Iterable[str]:
    lines = (line.strip(" \t-*>\u2022") for line in text.split("\n"))
    return (line for line in lines if len(line) >= _LINE)
