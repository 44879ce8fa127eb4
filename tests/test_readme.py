"""The README cannot lie: every example in it is executed, tested elsewhere, or says why it is not run.

The line before a block of shell, Python or JavaScript says which:

    <!-- run -->                        executed here: shell with bash, Python with this interpreter, in an empty folder
    <!-- tested by tests/x/test_y.py --> that file runs it
    <!-- not run: reason -->            cannot run here, and why
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import house
from tests.data import ROOT

README = ROOT / "README.md"
PROGRAMS = {"sh", "bash", "shell", "console", "python", "py", "js", "javascript", "ts", "typescript"}

_BLOCK = re.compile(
    r"^(?:<!--[ ]*(?P<mark>[^\n]*?)[ ]*-->[ \t]*\n(?:[ \t]*\n)?)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


class Example(NamedTuple):
    line: int
    language: str
    mark: str
    code: str


def examples(text: str) -> list[Example]:
    """The blocks that are programs, in order. `mark` is the text of the comment before it, or empty."""
    return [
        Example(text.count("\n", 0, match.start("code")), match["language"], match["mark"] or "", match["code"])
        for match in _BLOCK.finditer(text)
        if match["language"] in PROGRAMS
    ]


def written() -> list[Example]:
    return examples(README.read_text(encoding="utf-8"))


def runnable() -> list[Example]:
    return [example for example in written() if example.mark == "run"]


def complaint(example: Example) -> str:
    """What is wrong with an example's mark, or nothing."""
    mark = example.mark
    if mark == "run":
        known = example.language in ("sh", "bash", "python", "py")
        return "" if known else f"{example.language} cannot be run here"
    if mark.startswith("tested by "):
        return "" if (ROOT / mark.removeprefix("tested by ")).is_file() else f"no such test: {mark}"
    if mark.startswith("not run:"):
        return "" if mark.removeprefix("not run:").strip() else "not run, without a reason"
    return f"not marked (found {mark!r})"


def execute(example: Example, folder: Path) -> tuple[int, str]:
    """Exit status and output. Shell stops at the first failure; the commands of this environment come first."""
    command = ["bash", "-euo", "pipefail", "-c"] if example.language in ("sh", "bash") else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, example.code],
        cwd=folder,
        env={**os.environ, "PATH": f"{house.BIN}:{os.environ['PATH']}", "HOME": str(folder), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout


def test_every_example_says_how_it_is_kept_true() -> None:
    assert [f"README.md:{one.line}: {why}" for one in written() if (why := complaint(one))] == []
    assert runnable(), "a README whose examples nobody runs"


@pytest.mark.parametrize("example", runnable(), ids=lambda example: f"line-{example.line}")
def test_a_runnable_example_succeeds(example: Example, tmp_path: Path) -> None:
    status, said = execute(example, tmp_path)
    assert status == 0, f"README.md:{example.line}\n{example.code}\n{said}"


# -- the reader itself -----------------------------------------------------------------------------------------------

SAMPLE = """
<!-- run -->
```sh
echo one && false
```

```yaml
key: value
```

<!-- not run: -->
```js
1
```

```python
print(2)
```
"""


def test_the_reader_finds_programs_and_their_marks() -> None:
    found = [(one.language, one.mark) for one in examples(SAMPLE)]
    assert found == [("sh", "run"), ("js", "not run:"), ("python", "")]


def test_a_mark_without_a_reason_or_without_its_test_is_a_complaint() -> None:
    def judged(mark: str) -> str:
        return complaint(Example(1, "js", mark, ""))

    assert judged("not run: needs Node") == "" == judged("tested by tests/test_readme.py")
    assert all(map(judged, ("", "run", "not run:", "tested by tests/nowhere.py")))


def test_an_example_that_fails_is_seen_to_fail(tmp_path: Path) -> None:
    assert execute(examples(SAMPLE)[0], tmp_path) == (1, "one\n")
