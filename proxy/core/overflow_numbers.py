"""Read the numbers of an overflow: what bounds what, and how far over. Asked only when it is known to be one.

Two ways: texts that split their sum have a form each, here a table; all others are read by the words round a number.
Never read: characters, bytes and error codes. In an overflow the request is larger than its limit; a reading that says
otherwise is dropped, because a wrong window is worse than none. Source: research/overflow_errors.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from proxy.core.errors import Overflow
from proxy.core.overflow_phrases import NUMBER

_ABOUT = r"(?:~|about |around |over |approximately |at least |only )?"


def _form(pattern: str) -> re.Pattern[str]:
    """Compile `pattern`, where <limit>, <requested>, <input>, <output>, <over> and <any> stand for a number."""
    pattern = pattern.replace("<any>", rf"[\[(]?{NUMBER}")
    return re.compile(re.sub(r"<(\w+)>", lambda name: rf"{_ABOUT}[\[(]?(?P<{name[1]}>{NUMBER})", pattern))


_SPLITS = tuple(
    map(
        _form,
        (
            r"<input> ?\+ ?<output> ?(?:>|exceeds|is more than) ?<limit>",
            r"<output> ?> ?<limit> ?- ?<input>",
            r"must be (?:<=|less than(?: or equal to)?) <limit>\.? given: <input> [a-z_ ]{1,20} and <output> max",
            r"(?:input|prompt) (?:tokens|length) <input>\)? (?:and|\+|plus) [a-z_ ]{3,25} <output>",
            r"requested <output> output tokens and your prompt (?:contains|has) <input> input tokens",
            r"total of <requested> tokens: <input> tokens? (?:from|in|of) [a-z ]{1,30} and <output> tokens? (?:for|in|from)",
            r"is too large: <output>\..{0,40} (?:context|model) length is <limit> tokens and your request has <input> input",
            r"(?:passed|contains|has) <input> input tokens and requested <output> output",
            r"(?:passed|contains|has) <any> input characters and requested <output> output",
            r"requested <output> output tokens and your prompt (?:contains|has) <any> char",
            r"\b(?:input_tokens|prompt_tokens|input|prompt) ?= ?<input>",
            r"\bmax_(?:new_|completion_|output_)?tokens ?= ?<output>",
            r"(?:input|prompt|messages?)[ _](?:tokens|length) \(<input>\) (?:and|\+|plus) [a-z_ ]{3,25} \(<output>\)",
            r"[\[(]<requested> ?/ ?<limit> tokens",
        ),
    )
)
_BRACKET = re.compile(
    rf"\(((?:~|about )?{NUMBER} [a-z_ ]{{1,40}}(?: ?[,;+] ?(?:~|about )?(?:{NUMBER}|none) [a-z_ ]{{1,40}}){{1,4}})\)"
)
_PART = re.compile(rf"({NUMBER}) ([a-z_ ]{{1,40}})")

_LIMITS = tuple(
    map(
        _form,
        (
            r"(?:context|prompt|input|sequence|model|max_seq|models?)[ _](?:maximum )?(?:length|window|size|len|limit)(?: limit)?"
            r"(?: \(?n_ctx\)?)?(?: is| of|:| =| \(| \[|>|,)? ?<limit>",
            r"(?:maximum|max) (?:context |prompt |input |model |total |message )?(?:length|size|tokens?|limit|window)"
            r"(?: \([a-z_]+\))?(?: limit)?(?: is| of|:| allowed| =)?(?: is| of)? ?<limit>",
            r"(?:maximum number of|max number of) (?:input |prompt )?tokens(?: allowed)?(?: is| of|:)? ?<limit>",
            r"(?:configured |token |context |input |prompt |size )?limit (?:is |of |was )?<limit>",
            r"\blimit[:=] ?<limit>",
            r"(?:supports?|accepts?|allows?|handles?)(?: only)?(?: up to| at most| a maximum of)? ?<limit>",
            r"models? (?:maximum|max|limit)(?: of| is|:)? ?<limit>",
            r"for (?:the |this )?model with <limit>",
            r"(?:cannot|can not|must not|should not) (?:exceed|be (?:greater|larger|more|longer) than)(?: [a-z_]{2,20}){0,2} ?<limit>",
            r"must (?:be|have) (?:<=?|less than(?: or equal to)?|fewer than|at most|smaller than)(?: [a-z_]{2,20}){0,4} ?<limit>",
            r"should be (?:in |between )?[\[(]?[01](?:,| and) ?<limit>",
            r"max(?:imum)? size: ?<limit>",
            r"truncate to <limit>",
            r"(?:n_ctx|capacity)\b[^0-9]{0,5}<limit>",
            r"(?:exceeds?|exceeded|over|than|>=?)(?: (?:the|models?|maximum|max|allowed|of|context|token|limit|length|window|input)){0,6} ?<limit>",
        ),
    )
)
_REQUESTS = tuple(
    map(
        _form,
        (
            r"for a total of <requested>",
            r"requested(?: a total of|:)? ?<requested>(?! output)",
            r"<requested> tokens (?:were |was )?(?:requested|given|sent)\b",
            r"resulted in <requested>",
            r"(?:contains?|contained|has|have|had|used|uses) <requested> (?:input |prompt |total )?tokens",
            r"(?:received|required|given:|got|sent|was|were|but|actual:) <requested>\b",
            r"(?<!maximum )\b(?:current|prompt|input|requested|total|request|conversation) (?:input )?(?:length|size|tokens?|count)"
            r"(?: count)?(?: is| of| was|:| =)? ?<requested>",
            r"token count(?: of| is|:)? ?<requested>",
            r"too (?:long|large|many tokens)[:;,]? ?<requested>",
            r"\(length <requested>\)",
            r"<requested>\)?\]? ?(?:tokens? )?(?:>|exceeds?|is (?:longer|larger|greater|more) than)",
            r"\b(?:prompt|input|request|messages) <requested> tokens",
            r"n_keep\b[^0-9]{0,5}<requested>",
            r"<requested> (?:input|prompt) tokens",
        ),
    )
)
_OVER = _form(
    r"<requested>\)?\]? ?(?:tokens? )?(?:>(?!=)|exceeds?\b|is (?:longer|larger|greater|more) than|requested\b|sent\b)"
)
"""What is over something, or was asked for, is no limit, whatever stands before it."""
_DELTA = _form(r"(?:exceed\w*|over|longer|too long|limit)\b[^.0-9]{0,50} by <over> ?(?:input |prompt )?tokens")
_NEGATIVE = _form(r"must be at least 1, got -<over>")
# Figures that are no sizes: MiniMax's error code, statuses, ids, versions, repeated parameters.
_NOISE = re.compile(
    r"\(2013\)|<\d{3}>|\brequest id: \S+|\berror code:? \d+|\bstatus:? \d{3}\b|\b\d+(?:\.\d+){2,}\b|\(parameter=[^)]{1,80}\)|^\d{3}\b"
)
# A number that stands alone and counts nothing else.
_PLAIN = re.compile(
    rf"(?<![\w.\-/:#])({NUMBER})(?![\w\-/%]|[.:]\d| (?:input )?(?:characters|chars|bytes|images?|messages|items))"
)
_SMALL = 64
"""Tokens; smaller numbers are read only where the words say what they are."""
_OTHER_UNITS = re.compile(r"\b(?:characters?|chars|bytes|maxlength)\b")
_BOUND = re.compile(r"\bat least\b")
_ROUGH = re.compile(r"(?:~|\babout |\baround |\bapproximately |\bover )\(?\d")
_COMPLETION = re.compile(r"completion|output|max_|generat|response")
_INPUT_LIMIT = re.compile(
    r"(?:prompt|input|message)s?[ _](?:token )?(?:length|limit)|prompt is too long|\bprompt tokens?\b|prompt token count|input token|"
    r"input tokens|configured limit|number of tokens allowed|inputs must|tokens in the prompt|prompt too long: \d|max size|input length|message tokens"
)
_TOTAL_LIMIT = re.compile(r"(?:context|model) (?:length|window|size|limit)|max_tokens|n_ctx|context_length|max context")
_INPUT_OVER = re.compile(
    r"\b(?:prompts?|inputs?|messages|conversation|history|requested tokens|requests?|text)\b[^.]{0,60}(?:too (?:long|large|big|many)|"
    r"exceed|longer|larger than|over the|resulted in|surpass)|in the messages|tokens (?:in|of) (?:the |text )?(?:prompt|input)|length of prompt_tokens|context the overflows|\u8d85|\u8fc7\u957f|too many (?:input|prompt) tokens|"
    r"current length|prompt has|cannot truncate|text bytes|malformed input|n_prompt_tokens|n_keep"
)
_SUM = re.compile(r"max_(?:new_|completion_|output_)?tokens|completion|output tokens")
_SUM_IS_OVER = re.compile(
    r"(?:and|\+|plus) (?:maximum )?(?:max_|output tokens)|context window exceeds limit|tokens requested for|max_tokens or max_completion_tokens is too large"
)
_ADVICE = re.compile(
    r"(?:messages|prompt|input messages|either one)[;,]? or (?:the |your |reduce )?(?:completion|max_tokens|output)|(?:reduce|decrease|lower)[^.]{0,80}"
)
_FIELD_LIMIT = ("n_ctx", "max_context_length", "context_length", "context_window", "max_model_len", "max_prompt_tokens")
_FIELD_REQUEST = ("n_prompt_tokens", "prompt_tokens", "n_tokens")


def measure(text: str, numbers: Mapping[str, int]) -> Overflow:
    """The Overflow that normalised `text` and the numeric members `numbers` of the error state."""
    parts: dict[str, int] = {}
    lines = [_NOISE.sub(" ", line) for line in text.split("\n")]
    for line in lines:
        _split(line, parts)
    _fields(numbers, parts)
    for line in lines:
        _pair(line, parts)
    return Overflow(
        kind=_kind(text, parts),
        limit=parts.get("limit"),
        requested=parts.get("requested"),
        limit_of=_limit_of(text, parts),
        exact=_exact(text, parts),
        over_by=parts.get("over"),
        input=parts.get("input"),
        output=parts.get("output"),
    )


def number(text: str) -> int:
    """The integer of "8192", "8,192", "8_192" or "8192.0"; capped, for figures without sense."""
    digits = text.split(".")[0].replace(",", "").replace("_", "")
    return int(digits[:15])


def _split(line: str, parts: dict[str, int]) -> None:
    """The two parts of a sum, what follows from them, and a surplus that is stated alone."""
    for form in _SPLITS:
        found = form.search(line)
        if found and not ("input" in parts and "output" in parts):
            parts |= {name: number(value) for name, value in found.groupdict().items()}
    _bracket(line, parts)
    if "requested" not in parts and "input" in parts:
        parts["requested"] = parts["input"] + parts.get("output", 0)
    for form in (_DELTA, _NEGATIVE):
        found = form.search(line)
        if found:
            parts.setdefault("over", number(found["over"]))


def _bracket(line: str, parts: dict[str, int]) -> None:
    """The parts in "(3120 in the messages, 1000 in the completion)"; tools and functions are input."""
    found = _BRACKET.search(line)
    if not found or "input" in parts:
        return
    items = [(number(value), _COMPLETION.search(words) is not None) for value, words in _PART.findall(found[1])]
    parts["input"] = sum(value for value, answer in items if not answer)
    if any(answer for _, answer in items):
        parts.setdefault("output", sum(value for value, answer in items if answer))


def _fields(numbers: Mapping[str, int], parts: dict[str, int]) -> None:
    """llama.cpp and its kin state the numbers as members; they beat the text."""
    for name, keys in (("limit", _FIELD_LIMIT), ("requested", _FIELD_REQUEST)):
        for key in keys:
            if numbers.get(key, 0) > 0:
                parts[name] = numbers[key]
                break


def _pair(line: str, parts: dict[str, int]) -> None:
    """Limit and request by the words round the numbers: the best reading in which the request is the larger."""
    if _OTHER_UNITS.search(line) and "token" not in line:
        return
    surplus = parts.get("over")
    over = {surplus, *_found((_OVER,), line)}
    limits = [parts["limit"]] if "limit" in parts else [n for n in _found(_LIMITS, line) if n not in over]
    requests = [parts["requested"]] if "requested" in parts else [n for n in _found(_REQUESTS, line) if n != surplus]
    for limit in limits:
        larger = next((request for request in requests if request > limit), None)
        if larger is not None:
            parts["limit"], parts["requested"] = limit, larger
            return
    if limits:
        parts.setdefault("limit", limits[0])
    elif requests:
        parts.setdefault("requested", requests[0])
    if limits and parts.get("requested", limits[0] + 1) <= limits[0]:
        del parts["requested"]
    if surplus is None:
        _remainder(line, parts)


def _remainder(line: str, parts: dict[str, int]) -> None:
    """Two numbers without telling words: in an overflow the larger was asked for and the smaller is the limit."""
    known = {parts.get("input"), parts.get("output")}
    left = {value for value in map(number, _PLAIN.findall(line)) if value >= _SMALL and value not in known}
    limit, requested = parts.get("limit"), parts.get("requested")
    if limit is not None and requested is None and len(left - {limit}) == 1 and max(left) > limit:
        parts["requested"] = max(left)
    elif requested is not None and limit is None and len(left - {requested}) == 1 and min(left) < requested:
        parts["limit"] = min(left)
    elif limit is None and requested is None and len(left) == 2:
        parts["limit"], parts["requested"] = min(left), max(left)


def _found(forms: tuple[re.Pattern[str], ...], line: str) -> list[int]:
    """Numbers that `forms` read in `line`, the surest form first, each once."""
    values = dict.fromkeys(number(found[1]) for form in forms for found in form.finditer(line))
    return [value for value in values if value > 1]


def _kind(text: str, parts: Mapping[str, int]) -> str:
    limit, said, answer = parts.get("limit"), parts.get("input"), parts.get("output")
    if said is None and answer and limit is not None:
        # Only characters are stated for the prompt; a small output cannot be what fills the window.
        return "input_plus_output" if answer >= limit else "input" if answer <= limit // 4 else "unknown"
    if said is not None and limit is not None:
        if said > limit or not answer:
            return "input"
        # A lower bound is limit - output + 1 whatever the prompt: it hides which of the two is over.
        return "unknown" if _BOUND.search(text) else "input_plus_output"
    if "over" in parts:
        return "input"
    if _SUM_IS_OVER.search(text):
        return "input_plus_output"
    if _SUM.search(_ADVICE.sub(" ", text)):
        return "unknown"
    return "input" if _INPUT_OVER.search(text) or _limit_of(text, parts) == "input" else "unknown"


def _limit_of(text: str, parts: Mapping[str, int]) -> str:
    if parts.get("output"):
        return "total"
    inputs, total = _INPUT_LIMIT.search(text), _TOTAL_LIMIT.search(text)
    return "input" if inputs and not total else "total"


def _exact(text: str, parts: Mapping[str, int]) -> bool:
    if "requested" not in parts and "over" not in parts:
        return True
    return not (_BOUND.search(text) and "got -" not in text) and not _ROUGH.search(text)
