"""Secrets of nobody: made here from a fixed seed, in the shapes issuers publish, each in a sentence that may hold it.

Never written out, so that no scanner of repositories takes this file for a leak.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
from typing import NamedTuple

LETTERS = string.ascii_letters
ALNUM = LETTERS + string.digits
WORD = ALNUM + "-_"
BASE64 = ALNUM + "+/"
HEX = "0123456789abcdef"


class Canary(NamedTuple):
    """`told` is a text with `secret` in it; `kind` is for people."""

    kind: str
    told: str
    secret: str

    @property
    def core(self) -> str:
        """The longest line of the secret: what must not be found anywhere."""
        return max(re.split(r"\\n|\n", self.secret), key=len)


# Kind, the secret as pieces (a text, or how many characters of which alphabet), and the text around it.
_PLAIN = "the value is {} , use it"
_MADE: tuple[tuple[str, tuple[str | tuple[int, str], ...], str], ...] = (
    ("OpenAI, old", ("sk-", (20, ALNUM), "T3BlbkFJ", (20, ALNUM)), "OPENAI_API_KEY={}"),
    ("OpenAI project", ("sk-proj-", (74, WORD), "T3BlbkFJ", (74, WORD)), _PLAIN),
    ("OpenAI service account", ("sk-svcacct-", (74, WORD), "T3BlbkFJ", (74, WORD)), _PLAIN),
    ("Anthropic", ("sk-ant-api03-", (93, WORD), "AA"), "my key {}"),
    ("Anthropic admin", ("sk-ant-admin01-", (93, WORD), "AA"), _PLAIN),
    ("Groq", ("gsk_", (52, ALNUM)), _PLAIN),
    ("xAI", ("xai-", (80, ALNUM)), _PLAIN),
    ("Hugging Face", ("hf_", (34, LETTERS)), _PLAIN),
    ("AWS access key", ("AKIA", (16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")), "id {} in eu-west-1"),
    ("AWS session key", ("ASIA", (16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")), _PLAIN),
    ("AWS secret", ((40, BASE64),), "aws_secret_access_key = {}"),
    ("GCP key", ("AIza", (35, WORD)), _PLAIN),
    ("GCP access token", ("ya29.", (120, WORD)), _PLAIN),
    ("Google OAuth", ("GOCSPX-", (28, WORD)), _PLAIN),
    ("Azure storage", ((86, BASE64), "=="), "AccountName=a;AccountKey={};EndpointSuffix=core.windows.net"),
    ("Azure client", ((3, ALNUM), "8Q~", (34, ALNUM)), "AZURE_CLIENT_SECRET={}"),
    ("DigitalOcean", ("dop_v1_", (64, HEX)), _PLAIN),
    ("Databricks", ("dapi", (32, HEX)), _PLAIN),
    ("GitHub", ("ghp_", (36, ALNUM)), _PLAIN),
    ("GitHub, fine-grained", ("github_pat_", (22, ALNUM), "_", (59, ALNUM)), _PLAIN),
    ("GitHub in a remote", ("ghs_", (36, ALNUM)), "https://x-access-token:{}@github.com/a/b.git"),
    ("GitLab", ("glpat-", (20, WORD)), _PLAIN),
    ("npm", ("npm_", (36, ALNUM)), "//registry.example/:_authToken={}"),
    ("PyPI", ("pypi-AgEIcHlwaS5vcmc", (120, WORD)), _PLAIN),
    ("Docker", ("dckr_pat_", (27, WORD)), _PLAIN),
    ("Slack", ("xoxb-", (12, string.digits), "-", (13, string.digits), "-", (24, ALNUM)), _PLAIN),
    (
        "Slack webhook",
        ("T", (8, string.ascii_uppercase), "/B", (10, string.ascii_uppercase), "/", (24, ALNUM)),
        "curl https://hooks.slack.com/services/{} -d x",
    ),
    ("Discord", ("M", (25, ALNUM), ".", (6, ALNUM), ".", (38, WORD)), "DISCORD_TOKEN={}"),
    ("Telegram", ((10, "123456789"), ":AA", (33, WORD)), "bot token {}"),
    ("Twilio", ("SK", (32, HEX)), "twilio api key {}"),
    ("Twilio auth token", ((32, HEX),), 'TWILIO_AUTH_TOKEN="{}"'),
    ("SendGrid", ("SG.", (22, WORD), ".", (43, WORD)), _PLAIN),
    ("Stripe", ("sk_live_", (24, ALNUM)), _PLAIN),
    ("Stripe, restricted", ("rk_live_", (99, ALNUM)), _PLAIN),
    ("Shopify", ("shpat_", (32, HEX)), _PLAIN),
    ("URL with a password", ((14, ALNUM),), "https://deploy:{}@ci.example.org/job/1"),
    ("PostgreSQL", ((16, ALNUM),), "postgresql://app:{}@db.internal:5432/shop"),
    ("MongoDB", ((16, ALNUM),), "mongodb+srv://app:{}@cluster0.ab1cd.example.net/x"),
    ("Redis", ((20, ALNUM),), "redis://:{}@cache:6379/0"),
    ("password, quoted", ("Tr0ub4dor&", (8, ALNUM)), 'password = "{}"'),
    ("password, in words", ("Tr0ub4dor", (8, ALNUM)), "the password is {}."),
    ("password, in the environment", ((12, ALNUM), "7!"), "export DB_PASSWORD={}"),
    ("password, as an option", ("Hunter2-", (8, ALNUM)), "mysql -u root --password={} -e 'select 1'"),
    ("API key in YAML", ((32, ALNUM),), "api_key: {}"),
    ("client secret in JSON", ((40, ALNUM),), '{{"client_secret": "{}", "x": 1}}'),
    ("secret in JSON in JSON", ((40, ALNUM),), '{{"body": "{{\\"client_secret\\": \\"{}\\"}}"}}'),
    ("Bearer", ((40, ALNUM),), "Authorization: Bearer {}"),
)


def canaries(seed: int = 4711) -> list[Canary]:
    """All of them; another seed, other secrets."""
    drawn = random.Random(seed)

    def text(length: int, alphabet: str) -> str:
        return "".join(drawn.choice(alphabet) for _ in range(length))

    found = []
    for kind, pieces, around in _MADE:
        secret = "".join(piece if isinstance(piece, str) else text(*piece) for piece in pieces)
        found.append(Canary(kind, around.format(secret), secret))
    basic = base64.b64encode(f"admin:{text(12, ALNUM)}".encode()).decode()
    found.append(Canary("Basic", f"Authorization: Basic {basic}", basic))
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": text(10, string.digits), "iat": 1516239022})
    head = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    signed = f"{head}.{text(43, WORD)}"
    found.append(Canary("JWT", f"the cookie holds {signed} , keep it", signed))
    for kind, newline, around in (
        ("RSA PRIVATE KEY", "\n", "{}"),
        ("OPENSSH PRIVATE KEY", "\n", "cat id:\n{}\nend"),
        ("PRIVATE KEY", "\\n", '{{"type": "service_account", "private_key": "{}\\n"}}'),
    ):
        body = newline.join(text(64, BASE64) for _ in range(6))
        block = f"-----BEGIN {kind}-----{newline}{body}{newline}-----END {kind}-----"
        found.append(Canary(kind.lower(), around.format(block), block))
    return found
