"""Writes schemas/*.json, which editors use to complete and check weirgate.yaml and the policy files.

python scripts/schemas.py           write them
python scripts/schemas.py --check   say which are not current, exit 1 if any is not
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "schemas"


def rendered() -> dict[str, str]:
    from proxy import policies, settings
    from proxy.configfile import render_schema

    return {
        "weirgate.schema.json": render_schema(settings.schema()),
        "policy.schema.json": render_schema(policies.schema()),
    }


def main(arguments: list[str]) -> int:
    stale = 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in rendered().items():
        file = FOLDER / name
        if file.is_file() and file.read_text() == text:
            continue
        stale += 1
        if "--check" in arguments:
            print(f"{file} is not current: run python scripts/schemas.py")
        else:
            file.write_text(text)
            print(f"wrote {file}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parent))
    sys.exit(main(sys.argv[1:]))
