"""Writes proxy/store/sqlite.json: the SQL that `proxy.store.composing` makes, so that no start has to make it.

python scripts/statements.py           write it
python scripts/statements.py --check   say whether it is current, exit 1 if it is not

Run it after a change to the tables, the migrations or the statements.
"""

from __future__ import annotations

import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "proxy" / "store" / "sqlite.json"


def rendered() -> bytes:
    import msgspec

    from proxy.store.composing import composed

    return msgspec.json.format(msgspec.json.encode(composed()), indent=2) + b"\n"


def main(arguments: list[str]) -> int:
    made = rendered()
    if FILE.is_file() and FILE.read_bytes() == made:
        return 0
    if "--check" in arguments:
        print(f"{FILE} is not current: run python scripts/statements.py")
        return 1
    FILE.write_bytes(made)
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(FILE.parents[2]))
    sys.exit(main(sys.argv[1:]))
