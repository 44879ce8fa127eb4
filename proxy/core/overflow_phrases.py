"""The tables that tell a context overflow from its false friends: codes, vetoes, phrases, sums.

Data only; the order in which they are asked stands in `overflow`. All patterns are written for `overflow_evidence.
normalise`: lower case, no quotes ("model's" reads "models"), no URLs, single blanks. A pattern names a structure, not a
message: providers re-word often, and servers are forks of each other. Gaps are bounded, so that no text makes a search
slow. Sources: research/overflow_errors.md ("Order of decision").
"""

from __future__ import annotations

import re

NUMBER = r"\d[\d,_]*(?:\.0+)?"
OUTPUT_FIELD = r"max[_ ]?(?:completion[_ ]|output[_ ]|new[_ ]|response[_ ])?tokens?(?:[_ ]to[_ ]sample)?"
_CONTEXT = (
    r"(?:context|ctx)[ _-]?(?:window|length|size|limit|capacity|budget)|n_ctx|max_seq(?:uence)?_len(?:gth)?|max_model_len|"
    r"max_num_tokens|max_position_embeddings|"
    r"(?:max(?:imum)?|model) (?:allowed )?(?:context|prompt|input|sequence|model|message|request)s?[ _](?:token )?"
    r"(?:length|len|size|tokens?|limit|count|window)|"
    r"max(?:imum)? (?:context|prompt|total) tokens|max(?:imum)? context\b|models? (?:token )?(?:limit|maximum|max length)|"
    r"max(?:imum)? number of (?:input |prompt )?tokens"
)
_OVER = (
    r"exceed\w*|longer than|larger than|greater than|bigger than|more than|beyond|above|surpass\w*|overflow\w*|over the|"
    r"(?:not|cannot|cant|doesnt) fit|too (?:long|large|big|many tokens)|out ?of|outside|went over|"
    r"(?:must|should|can) ?not (?:exceed|be (?:longer|larger|greater|more) than)|must be (?:smaller|less|shorter) than"
)
_SAID = r"(?:prompts?|inputs?|messages?|conversation|chat history|history|context|input text|instructions?|query)"


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


EARLY_CODES = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "outofcontexterror",  # Volcengine
        "tokens_limit_reached",
    }
)
"""Codes that only an overflow carries; they overrule every veto of words."""

CODES = frozenset(
    {
        "10907",  # iFlytek Spark
        "1261",  # Zhipu
        "336103",  # Baidu
        "content_length_exceeds_threshold",  # Kiro
        "prompt_too_long",
        "token_quantity_exceeded",
        "tokens_too_long",
        "too_many_prompt_tokens",
    }
)
"""Codes that mean an overflow unless a veto speaks against it."""

VETO_STATUSES = frozenset({401, 402, 429, 529})

VETO_CODES = _any(
    r"^tokens$",
    r"^requests$",
    r"rate_?-?limit",
    r"throttl",
    r"insufficient_?(?:quota|balance|funds)",
    r"token_?quota",
    r"^quota|quota_?exceeded",
    r"request_too_large",
    r"overloaded",
    r"too_?many_?requests",
    r"too_many_tokens_error",
    r"overdue",
    r"budget_exceeded",
    r"content_?(?:filter|policy)",
    r"datainspection",
    r"max_tokens_exceeded",
    r"string_(?:above_max_length|too_long)",
    r"tpm|rpmexceeded",
    r"resource_?exhausted",
)
"""Searched in each code: money, pace, bytes, safety, output caps, one string over a character cap."""

EARLY = _any(
    # Sums of prompt and output: they name the output field and would look like an output cap.
    rf"inputs?(?: tokens?)? ?\+ ?{OUTPUT_FIELD} must be",
    rf"input (?:length|tokens?|token count)(?: count)? (?:and|\+|plus) {OUTPUT_FIELD}",
    rf"{_SAID}(?: tokens?)?(?: \([^)]{{1,20}}\))? (?:and|\+|plus) {OUTPUT_FIELD}[^.]{{0,40}}(?:exceed|too|over|must be)",
    r"input and (?:maximum )?output tokens[^.]{0,40}exceed",
    # The same with figures: "prompt tokens (9000) + completion tokens (500) > context length (8192)".
    rf"(?:inputs?|prompts?|messages?)[ _]?(?:tokens?|length)?:? [\[(]?{NUMBER}[\])]? ?(?:and|\+|plus) "
    rf"(?:{OUTPUT_FIELD}|(?:output|completion|response)[ _]tokens)[^.]{{0,40}}(?:exceed|>|over|larger|greater|more than)",
    rf"{OUTPUT_FIELD}\b.{{0,120}}maximum (?:context|model) length (?:is|of).{{0,80}}(?:input|prompt|messages)",
    rf"{OUTPUT_FIELD} must be at least 1, got -(?:[2-9]|\d\d)",
    # The classic sentence with its number; no false friend uses it.
    rf"maximum (?:context|prompt) length (?:is|of) (?:only )?{NUMBER}",
    rf"(?:requested|passed) {NUMBER} (?:input |output )?(?:tokens|characters)[^.]{{0,80}}\.? ?however, the models? context length",
    rf"max(?:imum)? size:? (?:is |of )?{NUMBER} tokens",
    r"too many total text bytes",
    # A character cap on the whole prompt; on one member of it ("#/texts/3: expected ...") it is a veto.
    r"malformed input request: expected maxlength",
)

VETO = _any(
    # pace and money
    r"\bper[ -](?:second|minute|min|hour|day|week|month)\b",
    r"\b(?:tpm|tpd|rpm|rpd|otpm|itpm|tokens/min)\b",
    r"rate[ -_]?limit",
    r"throttl",
    r"\bquotas?\b",
    r"\bcredits?\b",
    r"\bbalance\b",
    r"(?<!context )\bbudget\b|budget_tokens",
    r"resource[ _]?(?:has been )?exhausted|exceeded resource limits",
    r"\bkey limit\b|usage limit|free allocation",
    r"too many (?:requests|concurrent)|please wait|\boverloaded\b",
    r"extra usage is required|(?:is )?not (?:yet )?(?:available|enabled) for (?:this|your)",
    r"\u989d\u5ea6|\u914d\u989d|\u4f59\u989d|\u6b20\u8d39|\u9650\u6d41|\u5e76\u53d1|\u9891\u7387|\u6bcf\u5206\u949f",
    # safety
    r"\u654f\u611f|\u8fdd\u89c4|\u4e0d\u5b89\u5168|inappropriate content|content policy",
    # output caps: the field, then a bound
    rf"{OUTPUT_FIELD}(?: \S{{1,40}}){{0,6}} (?:must|should|has to|have to|needs to) (?:be|not)",
    rf"{OUTPUT_FIELD}(?: \S{{1,40}}){{0,4}} (?:cannot|can not|may not|must not|is limited|exceeds?|exceeded|is above|was reached)",
    rf"{OUTPUT_FIELD}(?: value)?(?: \(?{NUMBER}\)?)?,? (?:is )?(?:too (?:large|high|big)|out of range|invalid|not valid|not supported)",
    rf"{OUTPUT_FIELD}: {NUMBER} ?>|{OUTPUT_FIELD} ?[<>]=? ?{NUMBER}",
    rf"range (?:of|for) {OUTPUT_FIELD}|invalid {OUTPUT_FIELD}|{OUTPUT_FIELD} (?:or|and) [a-z ]{{0,20}}output limit",
    rf"supports? (?:at most|up to|only|a maximum of) {NUMBER} (?:completion|output)",
    r"(?:maximum|max)(?: allowed)? (?:number of )?(?:output|completion|generated|new) (?:tokens?|length)",
    r"maxoutputtokens|max output tokens|output token (?:length|limit)|model output limit",
    r"the maximum tokens you requested exceeds the model limit",
    r"integer (?:above|below) (?:maximum|minimum) value",
    # bytes
    r"(?<!text )\bbytes\b|\b\d+(?:\.\d+)? ?[kmg]i?b\b|payload|entity too large|request_too_large|request exceeds the (?:max\w* )?(?:allowed )?size|request body|body (?:is )?too large",
    r"message larger than|message size|member must have length",
    # images, pages, files
    r"\bimages?(?:\(s\))?(?: \S{1,20})? (?:exceeds?|dimensions?|size|may be)|image dimensions|too many images|images and documents",
    r"\b(?:images?|audio|video|file|document|url)s?(?: \S{1,20}){0,2} too (?:large|long|big|many)",
    r"pdf pages|\bpages?\b[^.]{0,20}(?:limit|maximum)|file (?:size|too large)",
    # batches and caches
    r"batch size|minimum token count|cached content",
    # one string over a character cap
    r"expected a(?:n)? (?:string|array) with maximum length|#/\S{1,40}: expected maxlength|should have at most \d+ (?:char|item)",
    # a broken history: another compaction would not mend it
    r"tool[_ ](?:use|result|call|id)\S{0,4}\b[^.]{0,80}(?:not found|without|must be|missing)|roles must alternate",
)
"""Words that speak against an overflow, whatever else the text says."""

PHRASES = _any(
    # what was said is over what a model holds, in this order
    rf"(?:{_OVER})[^.]{{0,60}}?(?:{_CONTEXT})",
    rf"(?:{_CONTEXT})[^.]{{0,40}}? (?:was |has been |is |been )?(?:exceeded|overflow\w*|reached|surpassed|too small)",
    r"context[ _](?:length|window|size|limit)[ _](?:exceeded|overflow\w*|reached)|contextwindowexceeded|contextlengthexceeded",
    r"context(?: window| length| size)? (?:window )?exceeds? (?:the )?limit|context shift is disabled|context the overflows",
    r"when (?:the )?context (?:the )?overflows|n_keep.{0,60}>= ?n_ctx",
    # what was said is too long
    rf"\b{_SAID}(?: \([^)]{{1,40}}\)| length| is| are| was| were| has become| text| token count){{0,3}} too (?:long|big)\b",
    r"\b(?:prompt|input|conversation|context)(?: \([^)]{1,40}\)| is| are){0,2} too large\b|\brequest (?:is )?too long\b",
    r"(?:messages|conversation|history) (?:resulted in|is|are) too (?:long|large|many)",
    r"too (?:large|long|big) (?:for|to fit (?:in|into)) (?:the |this )?model|reached (?:the )?(?:max(?:imum)? )?context",
    rf"too many (?:input |prompt |total |context )?tokens|(?:has|contains?|have) too many (?:input )?tokens|{_SAID} has too many",
    # tokens or lengths over a number
    r"(?:input|prompt|total|request(?:ed)?|message)s? tokens?(?: count)?(?: \S{1,20}){0,6}? (?:exceed\w*|over the)",
    r"(?:input|prompt|requested|request) (?:token count|length|size|tokens)(?: \S{1,24}){0,5}? (?:exceed\w*|cannot exceed|should not exceed)",
    r"\b(?:requested )?token count exceeds|exceeded models? token limit|tokens? (?:limit )?exceeds? the (?:models? )?(?:limit|maximum)",
    r"(?:token count|prompt tokens?|input tokens?)(?: \S{1,24}){0,4} but (?:the )?(?:model|limit|maximum)",
    r"range of (?:input|prompt) (?:length|tokens)|input (?:length )?should be in (?:the )?range",
    r"(?:inputs?|prompt|length of prompt_tokens)(?: \S{1,24}){0,3} must (?:have|be) (?:less|fewer|at most|shorter|smaller|<=?)",
    r"(?:inputs?|prompts?|messages?|tokens) [^.]{0,30}(?:longer|larger|greater|more) than the (?:model|maximum|limit|context)",
    rf"tokens?\b[^.]{{0,40}} exceeds? the limit of {NUMBER}|exceeds? the limit of {NUMBER} tokens|tokens over the limit|over the (?:token )?limit of {NUMBER}",
    rf"cannot truncate to {NUMBER}|cannot be truncated (?:any )?further",
    rf"tokens? [\[(]?{NUMBER}[\])]? exceeds?|prompt has {NUMBER} tokens",
    r"size limit exceeded by",
    r"exceed(?:s|ed)? (?:the )?max(?:imum)? (?:message |input |prompt |total )?tokens?\b",
    r"(?:prompt|input|conversation)s? exceed(?:s|ed)? (?:the )?(?:max|limit|allowed)",
    r"(?:input|request body|max) ?(?:token|size|length)s? ?\(?\d*\)? (?:too|over) (?:large|long|limit)",
    rf"context(?: length| window| limit| size)? ?(?:is|of|:|=) ?(?:only )?{NUMBER}|\bleaves (?:no|0|-\d+) (?:output |room)",
    r"(?:needs?|requires?|uses?) more tokens than",
    rf"(?:is|are|has|have) {NUMBER} tokens?(?: long)?[,;]? (?:but|and|while) (?:the |this )?(?:model|limit|maximum)",
    # advice that only an overflow gets, once the vetoes are through
    r"reduce (?:the )?(?:length|size|number of tokens) (?:of|in) (?:the |your )?(?:messages|prompts?|inputs?|conversation|either)",
    r"(?:shorten|reduce) (?:your|the) (?:prompt|input|messages|conversation|context)\b",
    r"(?:prompt|input)[^.]{0,30} must fit in|maximum (?:context|prompt|input) length",
    # Chinese
    r"\u8d85\u957f|(?:\u4e0a\u4e0b\u6587|\u8f93\u5165|\u63d0\u793a\u8bcd|prompt|tokens?)[^\u3002]{0,16}"
    r"(?:\u8fc7\u957f|\u592a\u957f|\u8d85\u8fc7|\u8d85\u51fa|\u8d85\u9650)|\u6700\u5927\u4e0a\u4e0b\u6587\u957f\u5ea6|"
    r"\u8d85[\u8fc7\u51fa][^\u3002]{0,16}\u4e0a\u4e0b\u6587",
)
"""What an overflow says, asked after the vetoes."""

SUSPECT = _any(r"no user query found in messages")
"""Words that mean an overflow only where our own estimate says so: Ollama's template after its own silent cut."""

GENERIC = frozenset(
    "400 413 422 500 a an and api api_error an bad badrequesterror body by client code contact content data detail "
    "else error errors exception failed for from gateway html http improperly in internal invalid invalid_request "
    "invalid_request_error large length message model none null occurred of or param please provider request returned "
    "server_error server something status support the this to too try type unexpected unknown upstream upstream_error "
    "went wrong".split()
)
"""Words that an opaque error is made of: they name no cause."""
