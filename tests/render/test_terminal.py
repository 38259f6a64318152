"""The terminal report: snapshots at two widths, and what must hold at any."""

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from fusionadvisor.catalog import STRATEGIES
from fusionadvisor.render import html, labels, markdown, terminal, verdict, view
from fusionadvisor.render.terminal import compose, render
from fusionadvisor.render.view import next_commands
from fusionadvisor.report.model import (
    OUTSIDE,
    Attempt,
    Hunt,
    KernelCount,
    KindSummary,
    NearMiss,
    Notice,
    Passed,
    Refusal,
    Report,
    Sites,
    Speedup,
    Timing,
)
from tests.render.samples import (
    ALL,
    APPLY,
    CHAIN,
    COMPILED,
    CPU_PROFILE,
    FOLD,
    FOLDED,
    PREDICTED,
    PROFILE,
    TRACE,
    bound,
)

SNAPSHOTS = Path(__file__).parent / "snapshots"
HOSTILE = "evil\x1b[31m\x1b]0;title\x07\u202egnp.exe\u2028next\r\n[bold]x[/bold]\x00"


def text(report: Report, width: int = 100, *, ascii_only: bool = False, verbose: bool = False) -> str:
    lines = compose(report, width, ascii_only=ascii_only, verbose=verbose).lines
    return "".join(f"{line.plain}\n" for line in lines)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", list(ALL))
def test_snapshot(name: str, width: int) -> None:
    file = SNAPSHOTS / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text(ALL[name], width), encoding="utf-8")
    assert text(ALL[name], width) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 48, 59, 60, 80, 100, 110])
@pytest.mark.parametrize("name", list(ALL))
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in compose(ALL[name], width).lines:
        assert cell_len(line.plain) <= width, line.plain


@pytest.mark.parametrize("name", list(ALL))
def test_ascii_form_says_the_same_in_ascii(name: str) -> None:
    plain = text(ALL[name], 80, ascii_only=True)
    assert plain.isascii()
    assert "?" not in plain
    assert all(len(line) <= 80 for line in plain.splitlines())


def test_every_remedy_fits_its_column() -> None:
    for strategy in STRATEGIES:
        report = replace(PROFILE, findings=(replace(FOLD, remedies=(strategy.id,)),))
        assert all(cell_len(line.plain) <= 100 for line in compose(report, 100).lines), strategy.id


FORMS = {
    "colour": {"TERM": "xterm-256color"},
    "plain": {"TERM": "xterm-256color", "NO_COLOR": "1"},
    "ascii": {"TERM": "dumb"},
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("name", ["profile", "apply"])
def test_snapshot_as_printed(name: str, form: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in FORMS[form].items():
        monkeypatch.setenv(variable, value)
    out = io.StringIO()
    render(ALL[name], Console(file=out, width=width, force_terminal=form != "ascii"))
    file = SNAPSHOTS / f"{name}-{width}-{form}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(out.getvalue(), encoding="utf-8")
    assert out.getvalue() == file.read_text(encoding="utf-8")
    assert ("\x1b[" in out.getvalue()) is (form != "ascii")
    assert bool(re.search(r"\x1b\[3\dm", out.getvalue())) is (form == "colour")


def test_names_from_a_trace_are_text() -> None:
    finding = replace(CHAIN, title=HOSTILE, module=HOSTILE, modules=(HOSTILE,), evidence=(HOSTILE,))
    out = io.StringIO()
    render(replace(TRACE, source=HOSTILE, findings=(finding,)), Console(file=out, width=100, force_terminal=False))
    printed = out.getvalue()
    assert not {"\x1b", "\u202e", "\u2028", "\x00", "\r", "\x07"} & set(printed)
    assert "[bold]x[/bold]" in printed
    assert "title" not in printed.split("evil")[1].split("gnp")[0]


@pytest.mark.parametrize(("env", "styled"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_follows_the_terminal(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], styled: bool) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    out = io.StringIO()
    render(PROFILE, Console(file=out, width=80, force_terminal=env.get("TERM") != "dumb"))
    assert ("\x1b[36m" in out.getvalue()) is styled
    assert out.getvalue().isascii() is ("TERM" in env)


def test_verdict_adds_only_what_adds_up() -> None:
    # 111 + 74 µs; the third finding's kernels are counted in the others
    assert "Up to 40 % of the step could be saved: 185 µs of 462 µs" in text(PROFILE)
    assert "36 % of kernel time unfused" in text(PROFILE)  # 165 of 458 µs of kernels


def test_verdict_never_exceeds_the_step() -> None:
    report = replace(PROFILE, findings=(replace(CHAIN, saving=bound(100, 9000)),))
    assert "Up to 100 % of the step could be saved: 462 µs of 462 µs" in text(report)


def test_findings_are_ranked_by_saving_whatever_their_order() -> None:
    printed = text(replace(PROFILE, findings=PROFILE.findings[::-1]))
    assert printed.index("FA101  Fold") < printed.index("FA103  Fuse") < printed.index("FA102  Move")


def test_first_line_says_that_times_are_cpu_times() -> None:
    first = text(CPU_PROFILE).splitlines()[0]
    assert "no CUDA device here" in first
    assert "CPU ops stand in for kernels · CPU times" in first


def test_first_line_says_that_kernels_are_predicted() -> None:
    first = text(PREDICTED).splitlines()[0]
    assert "no CUDA device here · kernels predicted for NVIDIA H100 80GB HBM3" in first
    assert "GPU busy" not in text(PREDICTED)


def test_totals_of_several_steps_are_shown_for_one() -> None:
    assert "10 kernels" in text(PROFILE)
    assert "100 kernels" not in text(PROFILE)
    assert "pointwise            4  219.0 µs" in text(PROFILE)


def test_a_trace_is_shown_as_recorded() -> None:
    printed = text(TRACE)
    assert "154 kernels" in printed
    assert "launch-bound if the CPU needs more than 7.95 µs a kernel;" in printed
    assert "unknown here: stacks were recorded" in " ".join(printed.split())


def test_next_command_can_run_here() -> None:
    graph = replace(CHAIN, rule="FA301", remedies=("cudagraph",), saving=bound(500, 900))
    assert next_commands(replace(PROFILE, findings=(graph,)))[0].endswith("--strategy cudagraph")
    assert next_commands(replace(CPU_PROFILE, findings=(graph, CHAIN)))[0].endswith("--strategy compile")
    assert next_commands(TRACE) == ("fusion-advisor explain FA103",)


def test_after_run_no_apply_is_offered_that_has_no_target() -> None:
    assert next_commands(PROFILE)[0] == "fusion-advisor apply --strategy fuse_modules"
    assert next_commands(replace(PROFILE, command="run")) == ("fusion-advisor explain FA101",)


def test_syncs_and_the_check_of_them_say_one_thing() -> None:
    clean = replace(PROFILE, fusion=replace(PROFILE.fusion, syncs=2), passed=(Passed("FA302", "no op waits"),))
    assert "2 syncs outside the step's ops" in text(clean)
    copied = replace(clean, findings=(replace(CHAIN, rule="FA405"),))
    assert "2 syncs outside" not in text(copied)
    assert "2 syncs" in text(replace(clean, passed=()))
    assert "2 syncs outside" not in text(replace(clean, passed=()))


def test_a_footnote_without_a_module_names_its_line_or_itself() -> None:
    small = replace(CHAIN, footnote=True)
    assert "Too small FA103 block.py:41" in text(replace(PROFILE, findings=(FOLD, small)))
    nowhere = replace(small, source=None, title="Fuse it")
    assert "Too small FA103 Fuse it" in text(replace(PROFILE, findings=(FOLD, nowhere)))


def test_scaled_times_are_said_once_in_every_form() -> None:
    line = CPU_PROFILE.timeline
    assert line is not None
    scaled = replace(CPU_PROFILE, timeline=replace(line, time_scale=0.63))
    for said in (text(scaled, 110), markdown.compose(scaled), html.compose(scaled)):
        assert said.lower().count("op times scaled to the unprofiled step") == 1
    for said in (text(CPU_PROFILE), markdown.compose(CPU_PROFILE), html.compose(CPU_PROFILE)):
        assert "op times scaled" not in said.lower()


def test_apply_shows_interval_control_and_agreement() -> None:
    printed = text(APPLY)
    assert "462.0 → 278.0 µs" in printed
    assert "1.66× faster" in printed
    assert "identical copies differ by 0.99–1.01" in printed
    assert "outputs agree with float64 (error 0.97× the original's, 4 input sets)" in printed
    assert "gone:     aten::batch_norm ×3" in text(APPLY, verbose=True)


def test_a_speed_up_inside_the_control_band_is_not_claimed() -> None:
    assert APPLY.result is not None
    printed = text(replace(APPLY, result=replace(APPLY.result, median=1.02, ci95=(1.0, 1.04), aa_band=(0.95, 1.05))))
    assert "No proven difference" in printed
    assert "faster: " not in printed


def test_render_prints_what_compose_lays_out() -> None:
    out = io.StringIO()
    render(PROFILE, Console(file=out, width=300))
    assert out.getvalue() == text(PROFILE, terminal.MAX_WIDTH)


def test_a_sentence_is_styled_as_a_whole() -> None:
    out = io.StringIO()
    render(PROFILE, Console(file=out, width=100, force_terminal=True, color_system="standard", no_color=False))
    assert "\x1b[1mUp to 40 % of the step could be saved: 185 µs of 462 µs\x1b[0m" in out.getvalue()


def test_near_misses_that_say_the_same_are_one() -> None:
    read = [NearMiss("FA101", f"bn{i}", f"conv{i} → bn{i} is not folded: its result is read by add") for i in range(19)]
    other = [NearMiss("FA102", f"m{c}", f"{c} stays outside") for c in "abcdef"]
    report = replace(PROFILE, near_misses=(*read, *other))
    lines = text(report, 110).splitlines()
    (first,) = [i for i, line in enumerate(lines) if line.startswith("Near miss")]
    assert lines[first] == "Near miss FA101 conv0 → bn0 is not folded: its result is read by add ×19"
    assert lines[first + 1] == "          FA102 ma: a stays outside"
    assert "mb: b stays outside" not in text(report)
    assert "mf: f stays outside" in text(report, verbose=True)


def test_after_is_before_over_the_speed_up_of_pairs_everywhere() -> None:
    drifted = Attempt(
        "fuse_modules", "faster", kept=True, before=Timing(10.1, (10, 10.2)), after=Timing(8.3, (8, 9)),
        speedup=Speedup(1.07, (1.05, 1.12), (0.98, 1.02)),
    )  # fmt: skip
    report = replace(
        APPLY, attempts=(drifted,), result=Speedup(1.07, (1.05, 1.12), (0.98, 1.02)), before=drifted.before
    )
    for shown in (text(report, verbose=True), markdown.compose(report), html.compose(report)):
        assert "10.1 → 9.4 ms" in shown  # 10.1 / 1.07 = 9.44
        assert "8.3 ms" not in shown.split("Every sample")[0]
        assert labels.PAIRED in shown.replace("\\", "")


def test_the_whole_is_what_was_measured_together() -> None:
    report = replace(APPLY, before=Timing(0.5, (0.5, 0.5)), result=Speedup(2.0, (1.9, 2.1), (0.99, 1.01)))
    assert "2.00× faster: 500.0 → 250.0 µs" in text(report)


def test_each_finding_says_what_could_go_what_went_and_whether_its_kernels_are_gone() -> None:
    said = " ".join(text(APPLY).split())
    expected = "FA101 ×3 closed · bound 90–111 µs · compile saved 183.1 µs for 2 findings together 3 of 3 kernels gone"
    assert expected in said
    fast = replace(APPLY.attempts[1], credits=(replace(APPLY.attempts[1].credits[0], measured_us=250.0, shared=1),))
    said = " ".join(text(replace(APPLY, attempts=(fast,))).split())
    assert "compile saved 250.0 µs (more than the bound: the rest of the step got shorter too) 3 of 3" in said
    assert "still open: FA102, FA103" in said


def test_what_was_not_kept_closes_nothing_and_cpu_times_vary() -> None:
    compiled = replace(APPLY.attempts[1], kept=False, on=())
    report = replace(CPU_PROFILE, command="apply", attempts=(compiled,))
    said = " ".join(text(report).split())
    expected = (
        "FA103 open, not kept · estimate 0.06–0.07 ms compile saved 0.18 ms for 2 findings together · 3 of 4 ops gone"
    )
    assert expected in said
    assert "still open: FA101, FA102, FA103" in said
    more = replace(compiled, kept=True, credits=(replace(compiled.credits[0], measured_us=2000.0, shared=1),))
    assert "(more than the estimate: CPU times vary)" in " ".join(text(replace(report, attempts=(more,))).split())
    assert "saving (estimate)" in text(CPU_PROFILE)


def test_memory_is_shown_where_it_changed() -> None:
    assert "peak memory of a call 103 → 51.4 MB" in text(APPLY)
    same = replace(APPLY.attempts[1], after=APPLY.attempts[1].before)
    assert "peak memory" not in text(replace(APPLY, attempts=(same,)))


def test_a_search_tells_its_path_and_what_it_did_not_reach() -> None:
    alone = replace(APPLY.attempts[1], on=(), kept=False, reason="Dropped.")
    hunt = Hunt("memory", 120.0, 98.7, ("compile on fuse_modules",))
    said = " ".join(text(replace(APPLY, attempts=(*APPLY.attempts, alone), hunt=hunt)).split())
    assert "Search original → fuse_modules 1.00× → compile 1.66×; 3 measurements for memory in 99 of 120 s" in said
    assert "not reached in that time: compile on fuse_modules" in said
    assert "faster, kept, on top of fuse_modules" in said
    assert "faster, on the original" in said
    assert "Dropped." in " ".join(text(replace(APPLY, attempts=(alone,), hunt=hunt), verbose=True).split())
    assert "nothing was kept; 1 measurement" in text(replace(APPLY, attempts=(alone,), hunt=hunt))


def test_a_strategy_tried_on_blocks_and_on_the_whole_model_is_told_apart() -> None:
    whole = replace(APPLY.attempts[1], on=(), kept=False, reason="Dropped.")
    blocks = replace(whole, kept=True, reason="", parameters={"regions": "layers.0,layers.1"})
    hunt = Hunt("latency", 120.0, 98.7)
    report = replace(APPLY, attempts=(blocks, whole), hunt=hunt)
    said = " ".join(text(report).split())
    assert "faster, kept, on 2 blocks (layers.0 … layers.1)" in said
    assert "faster, on the whole model" in said
    assert "Search original → compile of 2 blocks 1.66×" in said
    assert "faster, kept, on 2 blocks" in markdown.compose(report)
    assert "faster, on the whole model" in html.compose(report)


def test_what_only_the_check_of_the_whole_proved_is_said_once() -> None:
    reason = "Less is run. Kept: proven in the check of the whole."
    late = replace(APPLY.attempts[1], outcome="same", on=(), reason=reason)
    report = replace(CPU_PROFILE, command="apply", attempts=(late,), hunt=Hunt("latency", 120.0, 98.7))
    said = " ".join(text(report).split())
    assert "no proven difference on its own" in said
    assert "compile: proven in the final check" in said
    assert "compile: no proven difference" not in said


def test_sites_refused_are_among_those_looked_at_and_a_note_is_said_once() -> None:
    refused = (Refusal("fc → bn", "aten::view comes between them."),)
    note = "Nothing else fits."
    attempt = replace(FOLDED, sites=Sites(2, 1, refused), reason=f"{note} 3 ops.", notes=(note, "Another."))
    said = text(replace(APPLY, attempts=(attempt,)))
    assert re.search(r"fuse_modules +1 of 2 ", said)
    assert said.count(note) == 1
    assert "Another." in said
    assert "1 of 2" in html.compose(replace(APPLY, attempts=(attempt,)))


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_columns_of_large_counts_do_not_run_together(width: int, ascii_only: bool) -> None:
    large = replace(
        COMPILED, strategy="a_strategy_of_another_package", sites=Sites(matched=1200, applied=1100),
        kernels=KernelCount(103_345, 103_343), before=Timing(1234.5, (1234.0, 1235.0)),
    )  # fmt: skip
    lines = text(replace(APPLY, attempts=(large, FOLDED)), width, ascii_only=ascii_only).splitlines()
    row = next(line for line in lines if "a_strateg" in line and "1.66" in line)
    assert len(row) <= width
    assert re.search(r"\s1\.66(×|x) \(1\.66[–-]1\.67\)\s", row)
    (head,) = (line for line in lines if "tried" in line and "verdict" in line)
    counts = re.search(r"\s103345 (→|->) 103343\s", row)
    assert bool(counts) == ("kernels" in head) == (width >= 80)
    assert ("1100 of 1200" in row) == ("sites" in head) == (width == 100)


def test_the_headline_begins_with_what_the_report_cannot_say() -> None:
    outside = Notice(OUTSIDE, "9.0 ms of the step's 12.3 ms pass outside PyTorch's ops.")
    printed = text(replace(PROFILE, warnings=(outside,)))
    assert verdict.headline(replace(PROFILE, warnings=(outside,))) == outside.message
    assert " ".join(printed.split()).count(outside.message) == 1  # not a warning besides
    unseen = "99 % of kernel time is replayed from graphs."
    hidden = replace(PROFILE, fusion=replace(PROFILE.fusion, not_examined=unseen))
    assert verdict.headline(hidden) == f"Not examined: {unseen}"


@pytest.mark.parametrize(("share", "said"), [(0.6, True), (0.5, False), (None, False)])
def test_a_gpu_that_is_idle_for_most_of_the_step_is_the_headline(share: float | None, said: bool) -> None:
    fusion = replace(PROFILE.fusion, launch_bound=replace(PROFILE.fusion.launch_bound, idle_share=share))
    idle = replace(PROFILE, fusion=fusion)
    first = "The GPU is idle for 60 % of the step: 277 µs of 462 µs"
    assert verdict.headline(idle) == (f"{first}. " if said else "") + verdict.headline(PROFILE)
    assert verdict.headline(replace(idle, findings=())) == (
        first if said else verdict.headline(replace(PROFILE, findings=()))
    )


def test_what_ran_outside_all_steps_is_in_no_step() -> None:
    line = PROFILE.timeline
    assert line is not None
    kinds = (KindSummary("gemm", 50, 4000.0, 3.0, 200.0), KindSummary("copy", 50, 900.0))
    line = replace(line, by_kind=kinds, step_kernels=3.0, step_kernel_us=200.0, busy_us=115.5)
    seen = view.of(replace(PROFILE, timeline=line, latency=Timing(0.462, (0.461, 0.463))))
    assert [(row.key, *row.cells[1:3]) for row in seen.kinds.rows] == [("gemm", "3", "200.0 µs")]
    assert {"GPU busy 25 %", "3 kernels"} <= set(seen.step[0].items)


def test_a_verdict_on_little_of_the_time_says_so() -> None:
    little = replace(PROFILE, fusion=replace(PROFILE.fusion, judged_share=0.02))
    assert verdict.of_findings(little) == f"{verdict.of_findings(PROFILE)}; only 2 % of kernel time could be analysed"
    clean = replace(little, findings=())
    assert verdict.of_findings(clean).endswith(" passed; only 2 % of kernel time could be analysed")


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("batches", "generate")])
def test_the_short_form_fits_a_terminal_of_forty_lines(name: str) -> None:
    report = ALL[name]
    many = tuple(replace(CHAIN, id=f"FA103#{i}", title=f"Fuse chain {i}") for i in range(30))
    passed = tuple(Passed(f"FA1{i:02}", f"check {i}") for i in range(24))
    missed = tuple(NearMiss("FA101", f"m{c}", f"{c} stays outside") for c in "abcdefgh")
    if not report.attempts:
        report = replace(report, findings=(FOLD, *many), passed=passed, near_misses=missed)
    assert len(text(report, 100).splitlines()) <= 40
    for said in ("Fuse chain 29", "check 23", "h stays outside") if not report.attempts else ():
        assert said not in text(report)
        assert said in text(report, verbose=True)


def test_what_a_search_could_not_apply_is_one_line() -> None:
    refused = [Attempt(name, "refused", reason=f"{name} fits nothing.") for name in ("sdpa", "fx")]
    crashed = Attempt("torchscript", "crashed", reason="It ran out of memory.")
    report = replace(APPLY, attempts=(*APPLY.attempts, *refused, crashed), hunt=Hunt("latency", 120.0, 98.7))
    short, full = text(report), text(report, verbose=True)
    assert "  Not applicable: sdpa, fx (--verbose for reasons)\n" in short
    assert "fits nothing" not in short
    assert "sdpa: refused. sdpa fits nothing." in full
    assert "It ran out of memory." in short
    assert "Not applicable: `sdpa`, `fx`" in markdown.compose(report)
    assert "fx fits nothing." in html.compose(report)


def test_a_large_unfused_share_beside_a_small_saving_has_its_reason() -> None:
    assert "36 % of op time unfused (ops take 4 % of the step)" in " ".join(text(CPU_PROFILE).split())
    assert "unfused (" not in text(PROFILE)


def test_top_kernels_are_listed_on_demand() -> None:
    lines = [line.plain.split() for line in compose(PROFILE, 100, top=1).lines]
    assert ["cudnn::conv", "aten::a", "1", "41.0", "µs", "41.0", "µs", "53", "%"] in lines  # 41 of 78 µs
    assert not [line for line in lines if "bn_fw" in line]
    assert "Top kernels" not in text(PROFILE)


def test_what_a_search_did_not_reach_is_not_called_not_applicable() -> None:
    late = Attempt("compile", "not_tried", reason="The time was over.")
    refused = Attempt("sdpa", "refused", reason="No attention ran.")
    hunt = Hunt("latency", 25.0, 16.0, ("compile on the original",))
    said = " ".join(text(replace(APPLY, attempts=(late, refused), result=None, hunt=hunt)).split())
    assert "Nothing was changed: no strategy was measured" in said
    assert "Not applicable: sdpa (--verbose for reasons)" in said
    assert "not reached in that time: compile on the original" in said
