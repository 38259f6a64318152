"""The HTML report in a real browser: it renders, sorts, asks for nothing, and hostile names do nothing."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusionadvisor.render import html
from fusionadvisor.report.model import Finding, KernelTable, Report
from tests.render.samples import APPLY, CHAIN, PROFILE, TRACE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

HOSTILE = "</script><script>window.owned=1</script><img src=x onerror='window.owned=1'>\u2028\u202egnp"


def many(count: int) -> Report:
    """A trace of many kernels, each kernel of its own name, one of them hostile."""
    names = (HOSTILE, *(f"kernel_{i % 700}" for i in range(1, count)))
    table = KernelTable(
        total=count, index=tuple(range(count)), name=names, kind=("gemm",) * count, op=("aten::mm",) * count,
        module=("",) * count, source=("",) * count, device=(0,) * count, stream=(7,) * count,
        start_us=tuple(2.0 * i for i in range(count)), dur_us=tuple(1.0 + i % 9 for i in range(count)),
        group=tuple(i // 2 if i % 10 < 2 else -1 for i in range(count)), bytes=(-1,) * count,
    )  # fmt: skip
    hostile: Finding = replace(CHAIN, title=HOSTILE, module=HOSTILE, modules=(HOSTILE,), snippet=HOSTILE, source=None)
    assert TRACE.timeline is not None
    timeline = replace(TRACE.timeline, kernels=table, lost=(HOSTILE,))
    return replace(TRACE, source=HOSTILE, findings=(hostile,), timeline=timeline)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as player:
        running = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Any:
    """Open a report, and fail on any message of the console and any request but the file's own."""
    troubles: list[str] = []
    contexts = []

    def show(report: Report, **how: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(html.compose(report), encoding="utf-8")
        contexts.append(browser.new_context(**how))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request", lambda asked: troubles.append(asked.url) if not asked.url.startswith(("file:", "data:")) else 0
        )
        page.goto(file.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert troubles == []


def column(page: Any, number: int) -> list[float]:
    cells = page.locator(f"table.sortable tbody tr td:nth-child({number})").all_inner_texts()
    return [float(cell) for cell in cells]


def test_kernels_sort_by_any_column(shown: Any) -> None:
    page = shown(many(2_000))
    page.get_by_role("button", name="count").click()
    assert column(page, 4) == sorted(column(page, 4), reverse=True)
    page.get_by_role("button", name="count").click()
    assert column(page, 4) == sorted(column(page, 4))
    page.get_by_role("button", name="mean µs").click()
    assert column(page, 6) == sorted(column(page, 6), reverse=True)
    page.get_by_role("button", name="name", exact=True).click()
    names = page.locator("table.sortable tbody tr td:nth-child(1)").all_inner_texts()
    assert names[1:] == sorted(names[1:])


def test_a_long_table_is_cut_until_asked_for(shown: Any) -> None:
    page = shown(many(2_000))
    rows = page.locator("table.sortable tbody tr:visible")
    assert rows.count() == 30
    page.get_by_role("button", name="Show all 701").click()
    assert rows.count() == 701
    assert page.get_by_role("button", name="Show fewer").count() == 1
    assert shown(PROFILE).locator("button.more").count() == 0


def test_hostile_names_do_nothing(shown: Any) -> None:
    page = shown(many(50))
    assert page.evaluate("window.owned") is None
    assert page.locator("img").count() == 0
    assert "window.owned=1" in page.locator("h3").first.inner_text()


def test_twenty_thousand_kernels_stay_one_light_page(shown: Any) -> None:
    page = shown(many(20_000))
    assert page.locator("svg rect").count() < 2_000
    assert page.evaluate("document.documentElement.outerHTML.length") < 1_000_000


def picture(page: Any) -> list[list[str]]:
    """What the timeline shows: each thing's tag, its attributes in order, and its words."""
    found: list[list[str]] = page.evaluate(
        """[...document.querySelector("svg.timeline").children].map(thing => [
            thing.tagName, thing.textContent, ...[...thing.attributes].map(given =>
                `${given.name}=${given.value.replace(/-?\\d+(\\.\\d+)?/g, n => Number(n).toFixed(1))}`).sort()])"""
    )
    return found


@pytest.mark.parametrize("report", [PROFILE, APPLY, many(400), many(3_000)])
def test_the_script_draws_what_the_page_came_with(shown: Any, report: Report) -> None:
    page = shown(report)
    came = picture(page)
    page.get_by_role("button", name="the whole step").click()
    assert picture(page) == came


def test_zooming_into_twenty_thousand_kernels_shows_each(shown: Any) -> None:
    page = shown(many(20_000))
    bars = page.locator("svg.timeline rect.k")
    assert page.locator("svg.timeline rect.k title").count() == 0
    for _ in range(8):
        page.get_by_role("button", name="zoom in").click()
        assert bars.count() <= 500
    assert 78 <= bars.count() <= 83  # 156 µs, which is 40 ms halved eight times, a kernel every 2 µs, each up to 9 long
    assert "kernel_" in bars.first.locator("title").text_content()
    page.locator("svg.timeline").focus()
    page.keyboard.press("0")
    assert page.locator("svg.timeline rect.k title").count() == 0


def test_dragging_zooms_and_pointing_tells(shown: Any) -> None:
    page = shown(APPLY)
    page.locator("svg.timeline").scroll_into_view_if_needed()
    box = page.locator("svg.timeline").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=4)
    page.mouse.up()
    assert page.locator(".controls span").inner_text().startswith("2.3 µs to 231")
    page.locator("svg.timeline rect.k").first.hover()
    assert page.locator(".controls span").inner_text().startswith("cudnn::conv · aten::a conv1 · 41.0 µs")


def test_hostile_names_do_nothing_when_pointed_at(shown: Any) -> None:
    page = shown(many(50))
    page.get_by_role("button", name="the whole step").click()
    page.locator("svg.timeline rect.k").first.hover()
    assert "window.owned=1" in page.locator(".controls span").inner_text()
    assert page.evaluate("window.owned") is None
    assert page.locator("img").count() == 0


def test_it_reads_without_script(shown: Any) -> None:
    page = shown(APPLY, java_script_enabled=False)
    text = page.locator("main").inner_text()
    for said in ("1.66× faster", "fuse_modules", "Fold batch norm into its convolution", "out/recipe.json"):
        assert said in text


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_the_window(shown: Any, width: int) -> None:
    page = shown(many(200), viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_follows_the_reader_into_the_dark(shown: Any) -> None:
    colours = [
        shown(APPLY, color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert colours == ["rgb(255, 255, 255)", "rgb(17, 17, 19)"]
