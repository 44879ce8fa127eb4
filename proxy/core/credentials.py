"""What a credential looks like, and where one stands: shapes of issuers, names that assign one, URLs, key blocks.

Formats as their issuers publish them. Long random runs without an issuer's prefix or a telling name are left alone:
commits, digests, UUIDs and ids of calls look the same and must survive. No entropy is measured, no language parsed.
Linear: ordinary text is looked through by plain searches; only what they find is read, within bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

Found = tuple[int, int, str]
"""Where a secret begins and ends, and what it is in plain words."""

_W: Final = "[A-Za-z0-9_-]"
_A: Final = "[A-Za-z0-9]"
_MIXED: Final = rf"(?=[A-Za-z_-]*[0-9]){_W}"
# What it is, how it begins, how it goes on. A beginning has two characters at least: they are looked at first.
_ISSUERS: Final = (
    # model providers
    ("Anthropic key", "sk-ant-", rf"{_W}{{20,}}"),
    ("OpenRouter key", "sk-or-", rf"{_W}{{20,}}"),
    ("OpenAI key", "sk-proj- sk-svcacct- sk-admin- sk-None-", rf"{_W}{{20,}}"),
    ("API key", "sk-", rf"(?={_W}*[0-9A-Z]){_W}{{20,}}"),
    ("Groq key", "gsk_", rf"{_A}{{20,}}"),
    ("xAI key", "xai-", rf"{_MIXED}{{20,}}"),
    ("Google key", "AIza AQ.Ab", rf"{_W}{{20,}}"),
    ("Hugging Face token", "hf_ api_org_", rf"{_A}{{30,}}"),
    ("model provider's key", "r8_ pplx- csk- fw_ nvapi- tgp_v1_ lsv2_pt_ lsv2_sk_ jina_ tvly-", rf"{_MIXED}{{24,}}"),
    # clouds and hosts
    ("AWS access key", "AKIA ASIA ABIA ACCA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("AWS Bedrock key", "ABSK", r"[A-Za-z0-9+/]{40,}={0,2}"),
    ("Google OAuth secret", "GOCSPX-", rf"{_W}{{20,}}"),
    ("Google access token", "ya29.", rf"{_W}{{20,}}"),
    ("DigitalOcean token", "doo_v1_ dop_v1_ dor_v1_", r"[a-f0-9]{32,}"),
    (
        "cloud token",
        "HRKU- pul- dp.pt. dp.st. dp.ct. tskey- nfp_ rnd_ vca_ vcc_ vci_ vck_ vcp_ vcr_ sbp_ sb_secret_ pscale_ dt0c01."
        " hvb. hvs. CCDB1_ AstraCS: fo1_ fm2_ cfat_ cfut_ LTAI AKCp ops_eyJ",
        rf"{_MIXED}{{16,}}[A-Za-z0-9_.=+/-]*",
    ),
    ("Databricks token", "dapi", r"[a-f0-9]{32}(?:-\d)?"),
    # code, packages, containers
    ("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", rf"{_A}{{30,}}"),
    ("GitHub token", "github_pat_", r"[A-Za-z0-9_]{22,}"),
    (
        "GitLab token",
        "glpat- gldt- glft- glrt- glcbt- glptt- glagent- glsoat- glimt- glffct- gloas-",
        rf"{_W}{{20,}}(?:\.[a-z0-9.]+)?",
    ),
    ("npm token", "npm_", rf"{_A}{{30,}}"),
    ("PyPI token", "pypi-", rf"{_W}{{50,}}"),
    ("package registry's token", "rubygems_ cio oy2 packagist_ CLOJARS_", r"(?=[A-Za-z_]*\d)\w{32,}"),
    ("Docker token", "dckr_pat_ dckr_oat_", rf"{_W}{{20,}}"),
    ("Docker Swarm key", "SWMTKN-1- SWMKEY-1-", r"[A-Za-z0-9+/-]{40,}"),
    ("Atlassian token", "ATATT ATCTT BBDC-", r"[A-Za-z0-9_=+/-]{32,}"),
    (
        "build service's token",
        "CCIPAT_ CCIPRJ_ bkua_ bkaa_ bkct_ sntrys_ sntryu_ sgp_ sqp_ squ_ lin_api_ lin_oauth_ figd_ glc_ glsa_",
        rf"{_MIXED}{{28,}}[A-Za-z0-9_=+/-]*",
    ),
    # messages and mail
    (
        "Slack token",
        "xoxa- xoxb- xoxc- xoxd- xoxe- xoxe.xoxb- xoxe.xoxp- xoxo- xoxp- xoxr- xoxs- xapp-",
        rf"{_W}{{10,}}",
    ),
    ("SendGrid key", "SG.", rf"{_W}{{16,}}\.{_W}{{16,}}"),
    ("Twilio key", "SK", r"[0-9a-fA-F]{32}(?![A-Za-z0-9])"),
    ("mail service's key", "key- xkeysib-", r"[0-9a-fA-F]{32,}(?:-\w{16})?"),
    # money and shops
    ("Stripe key", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ whsec_", rf"{_A}{{10,}}"),
    ("payment service's key", "sq0atp- sq0csp- EAAA shippo_ EZAK EZTK rzp_live_ rzp_test_ xnd_", rf"{_MIXED}{{14,}}"),
    ("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"[a-fA-F0-9]{32}"),
    ("service's key", "ntn_ PMAK- PMAT- NRAK- NRJS- phc_ phx_ duffel_ apify_api_ sl. rdme_ tfp_", rf"{_MIXED}{{24,}}"),
    (
        "service's key",
        "AIK_CI_ AIK_CLIENT_ AIK_SECRET_ p8e- aact_prod_ aact_hmlg_ cnvca sk_car_ csa_ ddo_ ddp_ dvc_server_"
        " apk_ apk_user_ cog_ essu_ ico- ion_ lip_ llx- mlsn. nyk_ NRII- os_v2_app_ pcsk_ pnu_ polar_at_"
        " polar_oat_ polar_pat_ ramp_sec_ rootly_ rpa_ samsara_api_ tk-us- unkey_ ucat_ vtwn_ waka_ wandb_v1_"
        " zpka_ napi_ mdb_sa_sk_ persona_production_ FLWSECK- xoxd- sha256~ EXO sm_aat_ sm_pat_ sm_sat_ pina_"
        " prf_ prf_cli_ greptile_",
        r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}[A-Za-z0-9_=+/-]*",
    ),
    ("Weirgate key", "wg-", rf"(?=[a-z_-]*[0-9A-Z]){_W}{{20,}}"),
    ("age key", "AGE-SECRET-KEY-1", r"[A-Z0-9]{58}"),
    # anything signed
    ("signed token", "eyJ", rf"{_W}{{13,}}\.{_W}{{8,}}(?:\.{_W}*){{0,3}}"),
)
_ISSUED: Final = re.compile(
    "|".join(f"((?:{'|'.join(map(re.escape, heads.split()))}){rest})" for _, heads, rest in _ISSUERS)
)
_KINDS: Final = tuple(kind for kind, _, _ in _ISSUERS)
_HEADS: Final = frozenset(head[:2] for _, heads, _ in _ISSUERS for head in heads.split())
# In parts, of which only a later one is long.
_PARTED: Final = (
    ("Telegram token", ":", re.compile(rf"[0-9]{{8,10}}:AA{_W}{{32,}}")),
    ("Discord token", ".", re.compile(rf"[MNO]{_W}{{22,28}}\.{_W}{{6}}\.{_W}{{27,}}")),
    ("Terraform token", ".", re.compile(rf"{_A}{{14}}\.atlasv1\.{_W}{{40,}}")),
    ("Azure secret", "~", re.compile(r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}")),
)
_WEBHOOK: Final = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks)/[\w/]*$"
)

_LONG: Final = b"a" * 16
_MASK: Final = bytes(ord("a") if chr(code).isalnum() or chr(code) in "_-" else 32 for code in range(128)) + b" " * 128
"""Every character of a run becomes one letter, so that a long run is a fixed text to search for."""

_NAMES: Final = (b"pass", b"pwd", b"secret", b"token")
_NAMED: Final = re.compile(
    # The end of a name that says what it holds, then what assigns it, then an opening quote. Quotes may be escaped.
    r"(?P<name>passw(?:or)?d|passphrase|(?<=[_-])pass|pwd|secret(?:[_-]?access)?(?:[_-]?key)?|(?-i:(?:(?<![a-z])t|T)oken|TOKEN))"
    r"(?P<means>\\*[\"'`]?[ \t]{0,4}(?::=|=>|==?|:)[ \t]{0,4}"
    r"|[\"'`]?[ \t]+(?:is|are|was)[ \t]*:?[ \t]+|[ \t]+|[\"'][ \t]*,[ \t]*)"
    r"(?P<quote>\\*[\"'`])?",
    re.IGNORECASE,
)
_FLAG: Final = re.compile(r"(?<![\w-])--?[\w-]{0,40}$")
_KEYED: Final = re.compile(
    r"(?:(?:api|access|private|auth|account|shared|signing|encryption|master|subscription|storage|license|session|app)"
    r"[_ .-]?(?:access)?[_-]?key|apikey|credentials?|authorization|auth(?:_?token)?|_auth|secret[_-]?key|sig)"
    r"\\*[\"'`]?[ \t]{0,4}(?::=|=>|==?|:|,)$",
    re.IGNORECASE,
)
_KEY_ENDS: Final = ("key", "auth", "credential", "credentials", "authorization", "sig")
"""What those names end in: the quick look before the pattern."""
_SCHEMES: Final = MappingProxyType({"bearer": "token", "basic": "password", "apikey": "key"})
"""What comes behind a scheme of HTTP's Authorization header."""
_VALUE: Final = re.compile(r"(?:[^\s\"'`,;<>(){}\[\]|\\&]|&(?![\w.-]{1,64}=)){1,512}")
_QUOTED: Final = re.compile(r"[^\s\"'`\\\[]{1,512}(?=\\*[\"'`])")
_BACK: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_~.+/-"
"""What a value may hold before its first long run."""
_URL: Final = re.compile(
    r"://[^\s/@:\"'`<>\[\]]{0,128}:([^\s/@\"'`<>\[\]{}$]{1,256}|[^\s@\"'`<>\[\]{}$]{1,128})@(?=[\w\[$])"
)
_BLOCK: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----", re.IGNORECASE)
_BODY: Final = re.compile(
    r"(?:\\+[nr]|[A-Za-z0-9+/=]{8,}|[ \t\r\n\"',>|]|(?:Proc-Type|DEK-Info|Comment|Version):[^\n\\]*){1,4000}"
)
_KEY_LINE: Final = re.compile(r"[A-Za-z0-9+/=]{24}")
_BODY_MOST: Final = 16_384
"""Characters of a key block; the end of a longer one belongs to something else."""

# What stands where a secret would, and is none.
_STAND_IN: Final = re.compile(
    r"(?i)\*{3}|x{4,}|\.{3}|\u2026|<|\$[\{(A-Z_]|%[A-Z_]+%|your[_-]|example|placeholder|redacted|change_?me|dummy|process\.env"
    r"|environ|getenv|import\.meta"
)
_CODE: Final = re.compile(
    r"[A-Za-z_]\w*(?:(?:\.|->|::|\?\.)[A-Za-z_]\w*)+|[A-Za-z_]+\d{0,2}|[a-z]+(?:[_-][a-z]+)+[_-]?v?\d{0,3}"
)
_PLACE: Final = re.compile(r"(?:\.{0,2}|~|[a-z]{2,10}:)/|[A-Za-z]:\\|[\w-]+(?:/[\w.-]+)+\.\w{1,5}$")
_LONG_VALUE: Final = 64
_LEAST: Final = 8
_LEAST_WORD: Final = 6
_LEAST_KEY: Final = 16


def secrets(text: str) -> Iterator[Found]:
    """Every secret in `text`, in no order; some may lie inside others."""
    plain = text.encode("ascii", "replace")
    low = plain.lower()
    yield from _blocks(text, low)
    yield from _runs(text, plain.translate(_MASK))
    for name in _NAMES:
        behind = 0
        for at in _places(low, name):
            # Names inside a long value were read with it; to read on from each of them would be quadratic.
            value = _assigned(text, at) if at >= behind else None
            if value is not None:
                behind = value.end() if len(value.group()) > _LONG_VALUE else 0
                yield from _said(text, at, value)
    for at in _places(low, b"://"):
        if found := _URL.match(text, at):
            yield *found.span(1), "password"


def _places(text: bytes, needle: bytes) -> Iterator[int]:
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + len(needle))


def _blocks(text: str, low: bytes) -> Iterator[Found]:
    """Private keys, with their frame; of one that was cut off, what is left of it."""
    end, behind = -2, 0
    for at in _places(low, b"-----begin "):
        head = _BLOCK.match(text, at) if at >= behind else None
        if head is None:
            continue
        if -2 <= end < head.end() and end != -1:
            end = low.find(b"-----end ", head.end())
        body = _BODY.match(text, head.end())
        behind = body.end() if body is not None else head.end()
        if head.end() <= end <= at + _BODY_MOST:
            closing = low.find(b"key", end, end + 64)
            tail = low.find(b"-----", closing) + 5 if closing >= 0 else end
            behind = max(tail, end)
        if _KEY_LINE.search(text, head.end(), behind):
            yield at, behind, "private key"


def _runs(text: str, mask: bytes) -> Iterator[Found]:
    """Long runs that an issuer marked, or that a name or a scheme before them calls a secret."""
    at = mask.find(_LONG)
    while at >= 0:
        end = mask.find(b" ", at)
        end = len(mask) if end < 0 else end
        yield from _run(text, at, end)
        at = mask.find(_LONG, end)


def _run(text: str, start: int, end: int) -> Iterator[Found]:
    before = text[start - 1] if start else " "
    if before == "\\" and text[start] in "nrtbf":
        # A line break or a tab, as JSON writes it, is no part of the word behind it.
        start, before = start + 1, " "
    if text[start : start + 2] in _HEADS:
        yield from _issued(text, start)
    if before in ".:~":
        yield from _parted(text, start, before)
    if before not in "\n([{<,;|)]}":
        yield from _keyed(text, start)


def _issued(text: str, start: int) -> Iterator[Found]:
    found = _ISSUED.match(text, start)
    if found is not None and found.lastindex is not None:
        yield *found.span(), _KINDS[found.lastindex - 1]


def _parted(text: str, start: int, before: str) -> Iterator[Found]:
    """A token in parts, from a later one back."""
    window = text[max(0, start - 48) : start]
    first = start - len(window) + len(window.rstrip(_BACK + ":"))
    if text[first : first + 2] in _HEADS:
        yield from _issued(text, first)
    for kind, joint, shape in _PARTED:
        if joint == before and (found := shape.search(text, first, start + 80)):
            yield *found.span(), kind


def _keyed(text: str, start: int) -> Iterator[Found]:
    """A long value behind `api_key=`, `Authorization: Bearer` and the like."""
    window = text[max(0, start - 120) : start]
    value_from = window.rstrip(_BACK)
    for front in (window, value_from) if len(value_from) < len(window) else (window,):
        lead = front.rstrip(" \t\"'`\\")
        if lead.endswith(("=", ":", ">", ",")):
            named = lead[-60:].rstrip("=:>, \t\"'`\\").lower().endswith(_KEY_ENDS)
            kind = "key" if named and _KEYED.search(lead[-60:]) else ""
        else:
            kind = _SCHEMES.get(lead[-6:].lower().strip(" \t:\"'="), "") if len(lead) < len(front) else ""
        if kind:
            value = _VALUE.match(text, start - len(window) + len(front))
            if value is not None and len(value.group()) >= _LEAST_KEY and _random(value.group()):
                yield *value.span(), kind
            return
    if window.endswith("/") and _WEBHOOK.search(window) and (value := _VALUE.match(text, start)):
        yield *value.span(), "webhook"


def _assigned(text: str, at: int) -> re.Match[str] | None:
    """What the password, secret or token that is named at `at` is said to be."""
    found = _NAMED.match(text, at)
    if found is None:
        return None
    means = found.group("means").strip()
    if not means and not _FLAG.search(text[max(0, at - 42) : at]):
        return None
    if means.endswith(",") and found.group("quote") is None:
        return None
    return (_QUOTED if found.group("quote") else _VALUE).match(text, found.end())


def _said(text: str, at: int, value: re.Match[str]) -> Iterator[Found]:
    """`value`, if it may be the secret that its name at `at` announces."""
    said = value.group()
    if text[value.start() - 1] in " \t":
        said = said.rstrip(".,!?;:")
    word = text[at] in "pP"
    if _secret(said, word):
        kind = "password" if word else "secret" if text[at] in "sS" else "token"
        yield value.start(), value.start() + len(said), kind


def _secret(said: str, word: bool) -> bool:
    """Whether `said` may be a secret: no stand-in, no code that gets one, no place where one lies."""
    if len(said) < (_LEAST_WORD if word else _LEAST) or _STAND_IN.search(said):
        return False
    if _CODE.fullmatch(said) and not (word and re.search(r"\d", said) and "." not in said):
        return False
    if _PLACE.match(said):
        return False
    if word:
        return any(map(str.isalpha, said)) and not said.isalpha()
    return _random(said)


def _random(said: str) -> bool:
    """Letters and digits mixed, as nobody names a thing."""
    if _STAND_IN.search(said) or _PLACE.match(said) or _CODE.fullmatch(said):
        return False
    return any(map(str.isdigit, said)) and any(map(str.isalpha, said))
