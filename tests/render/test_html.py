"""The HTML report: one page that needs nothing else and believes no name it is given."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fusionadvisor.render import charts, html, labels
from fusionadvisor.report.model import Report, Timing
from tests.render.samples import ALL, APPLY, CHAIN, FOLD, PROFILE, TRACE, bound

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps what is on the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


def page(report: Report) -> Page:
    return Page(html.compose(report))


@pytest.mark.parametrize("name", list(ALL))
def test_pages_are_whole_and_load_nothing(name: str) -> None:
    text = html.compose(ALL[name])
    assert text.startswith(html.MARK)
    found = Page(text)
    assert found.open == []
    for tag, attrs in found.tags:
        assert "src" not in attrs, tag
        if tag != "a":
            assert not str(attrs.get("href", "data:")).startswith("http"), tag
    assert "url(" not in text
    assert "@import" not in text


def test_it_says_what_the_terminal_says() -> None:
    text = " ".join(page(APPLY).text.split())
    for said in ("1.66× faster", "462.0 → 278.0 µs", "0.99–1.01", "aten::batch_norm ×3", "cuDNN adds the folded bias"):
        assert said in text
    text = " ".join(page(PROFILE).text.split())
    for said in (
        "Up to 40 % of the step could be saved: 185 µs of 462 µs",
        "90–111 µs",
        "conv4 has a forward hook",
        "block.py:31",
    ):
        assert said in text


def test_hostile_names_are_text() -> None:
    name = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028\u202e\"'"
    table = (
        replace(PROFILE.timeline.kernels, name=(name, name), op=(name, name), kind=(name, name))
        if PROFILE.timeline
        else None
    )
    assert TRACE.timeline is not None
    assert table is not None
    finding = replace(CHAIN, title=name, module=name, modules=(name,), snippet=name, evidence=(name,), remedies=(name,))
    text = html.compose(
        replace(TRACE, source=name, findings=(finding,), timeline=replace(TRACE.timeline, kernels=table, lost=(name,)))
    )
    tags = [tag for tag, _ in Page(text).tags]
    assert tags.count("script") == 2  # the page's own, and its data
    assert "img" not in tags
    assert not {"\u2028", "\u202e"} & set(text)
    assert "alert(1)" in Page(text).text


def test_saving_is_to_the_scale_of_the_step() -> None:
    drawn = charts.saving(replace(FOLD, saving=bound(100, 300)), 1000.0)
    bars = re.findall(r'<rect x="([\d.]+)" y="2" width="([\d.]+)" height="12" class="(\w+)"', drawn)
    assert bars == [("0.00", "1000.00", "track"), ("0.00", "100.00", "sure"), ("100.00", "200.00", "maybe")]


def test_waterfall_is_to_scale() -> None:
    shares = [
        float(w) / 100
        for w in re.findall(r'class="(?:before|after|floor)" style="width: ([\d.]+)%', html.compose(APPLY))
    ]
    # the findings would leave 462 - 111 - 74 µs, which is not less than what was reached
    assert shares == pytest.approx([1, 461.1 / 462, 278 / 462, 278 / 462, 277 / 462], abs=1e-4)


def test_nothing_to_draw_draws_nothing() -> None:
    assert PROFILE.timeline is not None
    assert charts.roofline(PROFILE.timeline.kernels, None) == ""
    assert charts.samples([]) == ""
    assert "circle" not in charts.samples([("a", Timing(1.0, (1.0, 1.0)))])


def test_every_kind_has_its_colour() -> None:
    text = html.compose(PROFILE)
    for kind in labels.KINDS:
        assert re.search(rf"\.k-{kind}\b[^}}]*\{{ fill: var\(--c\d\); background: var", text), kind


def test_the_limit_is_never_above_what_was_reached() -> None:
    little = replace(APPLY, findings=(replace(FOLD, saving=bound(0, 1)),))
    widths = re.findall(r'class="(after|floor)" style="width: ([\d.]+)%', html.compose(little))
    reached = float(widths[-2][1])
    assert widths[-1] == ("floor", f"{reached:.2f}")
