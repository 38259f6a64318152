"""The Markdown report."""

import re
from dataclasses import replace

import pytest

from fusionadvisor.render.markdown import MARK, compose
from tests.render.samples import ALL, APPLY, CHAIN, PROFILE, REFUSED, TRACE


@pytest.mark.parametrize("name", list(ALL))
def test_tables_are_whole(name: str) -> None:
    text = compose(ALL[name])
    assert text.startswith(f"{MARK}\n\n### ")
    for block in text.split("\n\n"):
        rows = [len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")]
        assert len(set(rows)) <= 1, block
    assert text.count("<details>") == text.count("</details>")


def test_it_says_what_the_terminal_says() -> None:
    text = compose(PROFILE)
    assert "### Up to 40 % of the step could be saved\\: 185 µs of 462 µs" in text
    assert "Fold batch norm into its convolution ×3 | `bn1, bn2, bn3` `block.py:31` | 90–111 µs | fuse" in text
    assert "1.66× \\(1.66–1.67\\)" in compose(APPLY)
    assert "No site is legal" in compose(REFUSED)


def test_hostile_names_stay_text() -> None:
    name = "a|b`c <script>alert(1)</script> [x](http://evil) @user **b**\n# head"
    finding = replace(CHAIN, title=name, module=name, modules=(name,), evidence=())
    text = compose(replace(TRACE, source=name, findings=(finding,)))
    assert "\n# head" not in text
    outside_code = re.sub(r"(?<!\\)`[^`]*`", "", text)
    assert "<script>" not in outside_code.replace("\\<script\\>", "")
    assert "](http://evil)" not in outside_code
    assert not re.search(r"(?<!\\)@user", outside_code)
