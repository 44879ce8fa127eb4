"""Who asks: from the headers of a request to a Caller.

Belongs here: keys, their digests, the patterns of models that they open. Never: routes (a route says what it needs),
storage (rows are given, as one snapshot that is swapped whole), logging. A key exists in clear only in the client's
header and, once, in what `make_key` returns; everything else knows its digest: keyed, so that a stolen database names
no key, and whole, so that no two keys share an entry (research/reliability.md I-08, I-62).
"""

from __future__ import annotations

import hmac
import math
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import msgspec

from proxy.core.errors import Forbidden, Malformed, Unauthorised, WeirgateError
from proxy.core.quota import Quota
from proxy.core.steps import Caller
from proxy.server.head import Headers
from proxy.store import KeyRow

PREFIX = "wg-"

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_DIGITS = 43
_CHECK_DIGITS = 6
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr](?: +([!-~]+))? *")
_CREDENTIALS = frozenset((b"authorization", b"x-api-key"))
_TOKEN = re.compile(rb"[!-~]+")
_LOCAL = "local"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""The same as `Name` in the configuration: what stands in rows, logs and addresses."""
_MODELS = 100


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """All client keys of one moment. Made by `keys_of`; replaced, never changed.

    `callers` and `patterns` are by digest and by (tenant, key id). A key that is stopped or has expired is `barred`.
    Without any key, revoked ones included, the gateway is `open`: whoever reaches it is served, which `settings` allows
    on loopback only.
    """

    pepper: bytes
    callers: Mapping[bytes, Caller]
    patterns: Mapping[tuple[str, str], re.Pattern[str] | None]
    open: bool
    admin: bytes | None = None
    barred: Mapping[bytes, Quota] = msgspec.field(default_factory=dict)
    """By digest, in place of a caller."""
    quotas: Mapping[tuple[str, str], Quota] = msgspec.field(default_factory=dict)
    """Limits that are counted, by tenant and key id."""
    until: float = math.inf
    """When the first of the keys expires (unix seconds): this snapshot must be made anew then."""

    def authenticate(self, headers: Headers) -> Caller:
        """The caller that these headers prove. Raises Unauthorised; unknown and revoked keys are not told apart."""
        secret = _presented(headers)
        if self.open:
            return self._stranger(secret)
        digest = b"" if secret is None else key_digest(self.pepper, secret)
        caller = self.callers.get(digest)
        if caller is None:
            if digest in self.barred:
                raise _refused(self.barred[digest])
            raise Unauthorised("A valid API key is required: send it as 'Authorization: Bearer KEY'.")
        return caller

    def allowed(self, caller: Caller, model: str) -> bool:
        """Whether the caller's key opens `model`."""
        if self.open:
            return True
        try:
            pattern = self.patterns[caller.tenant, caller.key]
        except KeyError:
            return False
        return pattern is None or pattern.fullmatch(model) is not None

    def tenants(self) -> tuple[str, ...]:
        """Every tenant that has a key; the local one where there are none."""
        return tuple(dict.fromkeys(tenant for tenant, _ in self.patterns)) or (_LOCAL,)

    def authorise_admin(self, headers: Headers) -> None:
        """Let the holder of the admin secret pass. Raises Forbidden where none is configured, else Unauthorised."""
        if self.admin is None:
            raise Forbidden("The admin interface is off: no admin secret is configured.")
        secret = _presented(headers)
        if secret is None or not hmac.compare_digest(key_digest(self.pepper, secret), self.admin):
            raise Unauthorised("The admin secret is required: send it as 'Authorization: Bearer SECRET'.")

    def _stranger(self, secret: bytes | None) -> Caller:
        """Two people behind one open gateway, each with a provider key of their own, share no state."""
        if secret is None:
            return Caller(tenant=_LOCAL, key="open")
        return Caller(tenant=_LOCAL, key="client-" + key_digest(self.pepper, secret)[:6].hex())


def keys_of(
    rows: Iterable[KeyRow],
    pepper: bytes,
    *,
    admin: bytes | None = None,
    limits: Callable[[str, str], Quota] = lambda tenant, key: Quota(),
    now: float = 0.0,
) -> Keys:
    """A snapshot of these keys. `pepper` is the store's secret for "keys"; `admin` the admin secret's digest; `limits`
    gives the limits of a key by tenant and id, `now` is the time in unix seconds.

    A key from the settings is a row like any other, its digest made by `key_digest`. Raises ValueError where two live
    keys have one id within a tenant or one secret: either would answer for the other.
    """
    callers: dict[bytes, Caller] = {}
    patterns: dict[tuple[str, str], re.Pattern[str] | None] = {}
    barred: dict[bytes, Quota] = {}
    ids: dict[bytes, str] = {}
    quotas: dict[tuple[str, str], Quota] = {}
    until = math.inf
    closed = False
    for row in rows:
        closed = True
        if row.revoked_at is not None:
            continue
        name = (row.tenant, row.id)
        if name in patterns:
            raise ValueError(f"two keys have the id {row.id!r} in the tenant {row.tenant!r}")
        if row.digest in ids:
            raise ValueError(f"the keys {ids[row.digest]!r} and {row.id!r} have the same secret")
        ids[row.digest] = row.id
        patterns[name] = _pattern(row.models)
        quota = limits(row.tenant, row.id)
        if quota.closed(now):
            barred[row.digest] = quota
            continue
        callers[row.digest] = Caller(tenant=row.tenant, key=row.id)
        if quota.metered:
            quotas[name] = quota
        if quota.expires is not None:
            until = min(until, quota.expires)
    return Keys(
        pepper=pepper,
        callers=callers,
        patterns=patterns,
        open=not closed,
        admin=admin,
        barred=barred,
        quotas=quotas,
        until=until,
    )


def _refused(quota: Quota) -> WeirgateError:
    if quota.stopped:
        return Forbidden("This key is stopped: whoever runs the gateway refuses its requests.", code="key_stopped")
    return Unauthorised("This key has expired.")


def key_digest(pepper: bytes, secret: bytes) -> bytes:
    """The only form in which a secret is kept: BLAKE2b of all of it, 32 bytes, under the store's secret for "keys"."""
    return blake2b(secret, key=pepper, digest_size=32, person=b"weirgate.key").digest()


def make_key() -> tuple[str, str]:
    """A new key: its id, which may be shown, and its secret, which is shown once.

    The secret is `wg-`, 256 random bits and a checksum of them, in letters and digits, so that a double click takes all
    of it, a secret scanner knows it and a slip of the pen is told apart from a foreign key.
    """
    digits = _base62(secrets.randbits(256), _SECRET_DIGITS)
    return "key_" + _base62(secrets.randbits(64), 11), PREFIX + digits + _checksum(digits)


def new_key(
    pepper: bytes, now: float, *, tenant: str, id: str | None = None, models: tuple[str, ...] = ("*",)
) -> tuple[KeyRow, str]:
    """The row of a new key, to be stored, and its secret, to be shown once. Raises Malformed."""
    for name, value in (("tenant", tenant), ("id", id)):
        if value is not None and _NAME.fullmatch(value) is None:
            said = "letters, digits and . _ @ -, up to 64, a letter or digit first"
            raise Malformed(f"{name} is made of {said}.", code="invalid_id", param=name)
    if not 0 < len(models) <= _MODELS or not all(0 < len(model) <= 256 and model.isprintable() for model in models):
        raise Malformed(f"models is a list of 1 to {_MODELS} names or patterns.", code="out_of_range", param="models")
    made, secret = make_key()
    digest = key_digest(pepper, secret.encode("ascii"))
    return KeyRow(id=id or made, tenant=tenant, digest=digest, created_at=now, models=models), secret


def well_formed(secret: str) -> bool:
    """Whether this has the form and the checksum of a secret made here. It may still be unknown or revoked."""
    digits = secret.removeprefix(PREFIX)
    whole = secret.startswith(PREFIX) and len(digits) == _SECRET_DIGITS + _CHECK_DIGITS and digits.isascii()
    return whole and digits[_SECRET_DIGITS:] == _checksum(digits[:_SECRET_DIGITS])


def _presented(headers: Headers) -> bytes | None:
    """The secret in `Authorization: Bearer` or, where that names none, in `x-api-key`.

    None without either; a bare `Bearer` is what clients without a key send. A second header of the same name, another
    scheme or a non-ASCII value is refused, in the open mode too: it could not be passed on to a provider.
    """
    authorization = api_key = None
    for name, value in headers:
        if name in _CREDENTIALS:
            if (authorization if name == b"authorization" else api_key) is not None:
                raise Unauthorised("The Authorization or x-api-key header is there more than once.")
            if name == b"authorization":
                authorization = value
            else:
                api_key = value
    if authorization is not None:
        found = _BEARER.fullmatch(authorization)
        if found is None:
            raise Unauthorised("The Authorization header is not of the form 'Bearer KEY'.")
        if found[1] is not None:
            return found[1]
    if api_key is not None and _TOKEN.fullmatch(api_key) is None:
        raise Unauthorised("The x-api-key header is not a key.")
    return api_key


def _pattern(models: tuple[str, ...]) -> re.Pattern[str] | None:
    """`*` stands for any characters, as in the policy files; None opens every model. No model at all opens none."""
    if "*" in models:
        return None
    alternatives = (".*".join(re.escape(part) for part in model.split("*")) for model in models)
    return re.compile("|".join(alternatives) or "(?!)", re.DOTALL)


def _checksum(digits: str) -> str:
    return _base62(zlib.crc32(digits.encode("ascii")), _CHECK_DIGITS)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
