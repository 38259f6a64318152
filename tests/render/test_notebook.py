"""What a notebook shows of a report."""

import re
from dataclasses import replace
from html import unescape

import pytest

from tests.render.samples import ALL, CHAIN, TRACE
from tests.render.test_terminal import HOSTILE, text


@pytest.mark.parametrize("name", list(ALL))
def test_it_shows_what_the_terminal_does(name: str) -> None:
    shown = ALL[name]._repr_html_()
    assert f"{unescape(re.sub('<[^>]*>', '', shown))}\n" == text(ALL[name])


def test_hostile_names_are_inert() -> None:
    finding = replace(CHAIN, title=f"<script>alert(1)</script>{HOSTILE}", module='"><img src=x onerror=alert(1)>')
    shown = replace(TRACE, findings=(finding,))._repr_html_()
    assert re.findall("<[^>]*>", shown) == ['<pre style="line-height: 1.25">', "</pre>"]
    assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r"} & set(shown)
