"""How figures and places read."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fusionadvisor import catalog, strategies
from fusionadvisor.render import html, labels, markdown, perfetto, sarif, terminal
from fusionadvisor.render.labels import Scale
from fusionadvisor.render.parts import Column, Row, Table
from fusionadvisor.render.text import Sheet, clean
from fusionadvisor.report.model import Report, Source, Timing
from fusionadvisor.trace.kinds import KINDS
from tests.render.samples import CPU_PROFILE, EPILOGUE, FOLD, PROFILE, bound


@pytest.mark.parametrize(
    ("whole", "us", "time", "rounded"),
    [
        (462.0, 7.91, "7.9 µs", "7.9 µs"),
        (462.0, 184.26, "184.3 µs", "184 µs"),
        (462.0, 0.512, "0.51 µs", "0.51 µs"),
        (9_999.0, 9_999.0, "9999.0 µs", "9999 µs"),
        (10_000.0, 8_615.1, "8.6 ms", "8.6 ms"),
        (89_300.0, 25_640.0, "25.6 ms", "26 ms"),
        (12e6, 3.21e6, "3.2 s", "3.2 s"),
        (462.0, 0.0, "0.0 µs", "0.0 µs"),
    ],
)
def test_one_unit_for_the_whole_report(whole: float, us: float, time: str, rounded: str) -> None:
    assert (Scale.of(whole).time(us), Scale.of(whole).bound(us)) == (time, rounded)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(90, 111, "90–111 µs"), (0, 111, "up to 111 µs"), (0.001, 4, "up to 4.0 µs"), (41.2, 41.4, "41 µs")],
)
def test_bounds(low: float, high: float, said: str) -> None:
    assert Scale.of(462).range(low, high) == said


def test_intervals_keep_the_unit_of_their_median() -> None:
    assert labels.interval(Timing(0.462, (0.4614, 0.4626))) == "462.0 µs ± 0.6"
    assert labels.interval(Timing(89.3, (80.0, 100.0))) == "89.3 ms ± 10.0"
    assert labels.interval(Timing(12.0, (11.99, 12.01))) == "12.0 ms ± 0.01"
    assert labels.change(12.0, 0.5) == "12.0 → 0.50 ms"


def test_places() -> None:
    places = (Source("a/block.py", 21), None, Source("a/block.py", 18), Source("a/other.py", 3))
    fold = replace(FOLD, modules=("bn1", "bn2", "bn3", "bn4"), sources=places)
    assert labels.lines(fold) == "block.py:18, 21, other.py:3"
    assert labels.lines(replace(fold, sources=())) == "block.py:31"
    assert labels.lines(replace(fold, sources=(), source=None)) == ""
    assert labels.where(replace(fold, modules=tuple(f"layer{i}.bn" for i in range(30)))) == (
        "layer0.bn, layer1.bn, layer2.bn, layer3.bn, layer4.bn and 25 more"
    )
    assert labels.where(replace(fold, modules=("A#0/B#1/C#2/D#3",))) == "…/C#2/D#3"


def test_savings_that_are_not_known_or_counted_elsewhere() -> None:
    scale, nothing = Scale.of(462), replace(FOLD, saving=bound(0, 0))
    assert labels.saving(nothing, scale) == "no time"
    assert labels.saving(replace(nothing, rule="FA301"), scale) == "unknown"
    assert labels.saving(replace(nothing, overlaps=("FA103#1",)), scale) == "counted in FA103"
    assert labels.saving(replace(FOLD, overlaps=("FA103#1",)), scale) == "90–111 µs"


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("a\r\nb\tc\u2028d", "a b c d"),
        ("\u202etxt\u202c\u200f\u2066\x00\x9b", "txt"),
        ("\ud800", ""),
        ("größe 日本", "größe 日本"),
    ],
)
def test_cleaning(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned


def test_wide_characters_count_as_two_cells() -> None:
    sheet = Sheet(80)
    sheet.table(Table("", (Column(""), Column("")), (Row(("日本", "a")), Row(("bcd", "e")))))
    assert [line.plain for line in sheet.lines] == ["  日本  a", "  bcd   e"]
    narrow = Sheet(6)
    narrow.table(Table("", (Column(""),), (Row(("日本語",)),)))
    assert [line.plain for line in narrow.lines] == ["  日 …"]


def test_long_words_are_not_lost() -> None:
    sheet = Sheet(20)
    sheet.say("a " + "x" * 50 + " b", indent=2)
    assert "".join(line.plain for line in sheet.lines).replace(" ", "") == "a" + "x" * 50 + "b"


def test_every_kind_has_a_name() -> None:
    assert set(KINDS) == set(labels.KINDS)


@pytest.mark.parametrize(
    ("report", "word", "other"), [(PROFILE, "bound", "estimate"), (CPU_PROFILE, "estimate", "bound")]
)
def test_every_form_calls_a_saving_the_same(report: Report, word: str, other: str) -> None:
    forms = {
        "terminal": "".join(f"{line.plain}\n" for line in terminal.compose(report, 100).lines),
        "markdown": markdown.compose(report),
        "html": html.compose(report),
        "sarif": sarif.compose(report, sarif.Folders("/home/someone", "/home/someone")),
        "perfetto": perfetto.compose(report),
    }
    for form, text in forms.items():
        assert re.search(rf"(?<![-\w]){word}s?\b", text), form
        assert not re.search(rf"(?<![-\w]){other}s?\b", text), form


def test_a_saving_is_a_clause_of_its_own_where_there_is_no_table() -> None:
    scale = Scale.of(462)
    assert labels.could_save(FOLD, PROFILE, scale) == "could save 90–111 µs (bound)"
    assert labels.could_save(EPILOGUE, PROFILE, scale) == "shares kernels with FA103; each is counted once"
    assert labels.could_save(replace(FOLD, saving=bound(0, 0)), PROFILE, scale) == "saves no time"
    launch = replace(FOLD, rule="FA301", saving=bound(0, 0))
    assert labels.could_save(launch, PROFILE, scale) == "what it could save is unknown"


def test_no_renderer_knows_a_rule_or_a_strategy_by_its_id() -> None:
    ids = {entry.id for entry in (*catalog.RULES, *catalog.STRATEGIES)} - {
        "optimizer",
        "channels_last",
    }  # a kind, a layout
    for file in Path(labels.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not ids & {text for text in texts if isinstance(text, str)}, file.name


def test_the_catalogue_knows_which_strategies_need_a_device() -> None:
    for entry in catalog.STRATEGIES:
        assert strategies.get(entry.id).needs_cuda == entry.needs_cuda


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>, A<B<2>>>(int, float*)",
         "vectorized_elementwise_kernel"),
        ("void (anonymous namespace)::softmax<c10::Half>(c10::Half*)", "softmax"),
        ("aten::relu", "aten::relu"),
        ("triton_" + "x" * 80, "triton_" + "x" * 52 + "…"),
        ("<lambda>", "<lambda>"),
    ],
)  # fmt: skip
def test_kernels_are_called_by_their_own_name(name: str, short: str) -> None:
    assert labels.kernel(name) == short
