"""Writes proxy/store/sqlite.json and postgres.json: the SQL that `proxy.store.composing` and `composing_postgres` make,
so that no start has to make it.

python scripts/statements.py           write them
python scripts/statements.py --check   say whether they are current, exit 1 if one is not

Run it after a change to the tables, the migrations or the statements.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "proxy" / "store"


def rendered() -> Mapping[Path, bytes]:
    import msgspec

    from proxy.store import composing, composing_postgres

    made = {"sqlite.json": composing.composed(), "postgres.json": composing_postgres.composed()}
    return {
        FOLDER / name: msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n" for name, said in made.items()
    }


def main(arguments: list[str]) -> int:
    stale = [(file, made) for file, made in rendered().items() if not file.is_file() or file.read_bytes() != made]
    for file, made in stale:
        if "--check" in arguments:
            print(f"{file} is not current: run python scripts/statements.py")
        else:
            file.write_bytes(made)
            print(f"wrote {file}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parents[1]))
    sys.exit(main(sys.argv[1:]))
