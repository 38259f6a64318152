"""Reports made by hand, one for each face the renderers have to show. The figures add up."""

from dataclasses import replace

from fusionadvisor.report.model import (
    Attempt,
    Credit,
    DeviceSummary,
    Environment,
    Finding,
    Fusion,
    KernelCount,
    KernelTable,
    KindSummary,
    LaunchBound,
    NearMiss,
    NotApplicable,
    Notice,
    Passed,
    Range,
    Refusal,
    Report,
    Saving,
    Sites,
    Source,
    Speedup,
    TensorSpec,
    TimelineSummary,
    Timing,
    Tool,
    Verification,
    Workload,
)

TOOL = Tool("fusion-advisor", "0.1.0")
CREATED = "2026-01-02T03:04:05+00:00"
H100 = Environment(
    gpu="NVIDIA H100 80GB HBM3", gpu_count=1, compute_capability="9.0", memory_gb=85.0, driver="580.82", cuda="13.0",
    torch="2.13.0+cu130", python="3.11.7", cpu="a CPU", threads=8, peak_gbs=3350.0, copy_gbs=2850.0,
)  # fmt: skip
CPU = Environment(torch="2.13.0+cpu", python="3.11.7", cpu="a CPU", threads=2)

BLOCK = Workload(
    target="/home/someone/block.py", entry="build_model", model="Bottleneck",
    inputs=(TensorSpec("x", (64, 256, 56, 56), "bfloat16", "channels_last", "cuda"),),
    inputs_from="example_inputs", device="cuda", assumed=("dtype from the weights",),
)  # fmt: skip


def bound(low: float, high: float, likely: float | None = None) -> Saving:
    between = Range(low, likely, high)
    return Saving(between, between)


FOLD = Finding(
    id="FA101#1", rule="FA101", title="Fold batch norm into its convolution", module="bn1", saving=bound(90, 111, 104),
    source=Source("/home/someone/block.py", 31), modules=("bn1", "bn2", "bn3"), instances=3, kernels=(1, 4, 7),
    sources=(Source("/home/someone/block.py", 31),) * 3, kernel_us=111.0, share=0.24, flow="proven",
    remedies=("fuse_modules", "compile"), snippet="fuse(conv1, bn1)",
)  # fmt: skip
EPILOGUE = Finding(
    id="FA102#1", rule="FA102", title="Move the activation into the epilogue", module="relu", saving=bound(0, 0),
    source=Source("/home/someone/block.py", 35), modules=("relu",), instances=3, kernels=(2, 5, 9), kernel_us=165.0,
    share=0.357, flow="proven", remedies=("compile",), overlaps=("FA103#1",),
)  # fmt: skip
CHAIN = Finding(
    id="FA103#1", rule="FA103", title="Fuse the pointwise chain add→relu", module="", saving=bound(60, 74, 68),
    source=Source("/home/someone/block.py", 41), modules=(), kernels=(8, 9), kernel_us=109.0, share=0.236,
    flow="proven", evidence=("writes, then re-reads, 103 MB",), remedies=("compile", "torchscript"),
)  # fmt: skip

PROFILE = Report(
    tool=TOOL, created=CREATED, command="profile", environment=H100, workload=BLOCK, source="/home/someone/block.py",
    timeline=TimelineSummary(
        basis="measured",
        devices=(DeviceSummary(0, 100, 4580.0, 4700.0, 4580.0, 1, "NVIDIA H100 80GB HBM3"),),
        steps=10, steps_from="ProfilerStep", step_us=470.0, launches=100,
        by_kind=(
            KindSummary("elementwise", 40, 2190.0), KindSummary("conv", 30, 1280.0), KindSummary("norm", 30, 1110.0),
        ),
        kernels=KernelTable(
            total=2, index=(0, 1), name=("cudnn::conv", "bn_fw"), kind=("conv", "norm"), op=("aten::a", "aten::b"),
            module=("conv1", "bn1"), source=("block.py:30", "block.py:31"), device=(0, 0), stream=(7, 7),
            start_us=(0.0, 42.0), dur_us=(41.0, 37.0), group=(-1, 0), bytes=(6_150_000_000, 6_150_000_000),
        ),
    ),
    latency=Timing(0.462, (0.4614, 0.4626), (0.462,) * 200),
    fusion=Fusion(groups=4, unfused_us=165.0, launch_bound=LaunchBound(7.9, 0.0)),
    findings=(FOLD, EPILOGUE, CHAIN),
    near_misses=(NearMiss("FA101", "bn4", "conv4 has a forward hook", Source("/home/someone/train.py", 88)),),
    passed=(Passed("FA301", "not launch-bound"), Passed("FA201", "no siblings on one input")),
    not_applicable=(NotApplicable("FA107", "the model has no attention"),),
)  # fmt: skip

LOUD = Notice("W01", "Two threads share this machine with other work: intervals are wide.")
CPU_PROFILE = replace(
    PROFILE,
    environment=CPU,
    workload=replace(
        BLOCK, device="cpu", assumed=("eval() under no_grad", "4 images instead of 64, as there is no CUDA device"),
        inputs=(TensorSpec("x", (4, 64, 56, 56), "float32"),),
    ),
    timeline=replace(PROFILE.timeline, stand_ins=True) if PROFILE.timeline else None,
    latency=Timing(12.34, (12.24, 12.44), (12.34,) * 30),
    warnings=(LOUD,),
)  # fmt: skip

TRACE = replace(
    PROFILE,
    command="analyze", workload=None, source="/data/run 7/vit.json.gz", latency=None, near_misses=(),
    environment=replace(H100, torch=None, copy_gbs=None),
    timeline=TimelineSummary(
        basis="recorded", devices=(DeviceSummary(0, 154, 1225.31, 7559.8, 1220.9, 1, "NVIDIA H100 80GB HBM3"),),
        steps=1, steps_from="window", step_us=7559.8, linked_share=0.981, orphan_kernels=3, launches=151,
        by_kind=(KindSummary("gemm", 72, 801.2), KindSummary("norm", 50, 219.7), KindSummary("elementwise", 32, 200.0)),
        lost=("The file ends in the middle of an event; the last 3 kB could not be read.",),
    ),
    fusion=Fusion(groups=12, unfused_us=200.0,
        launch_bound=LaunchBound(
            7.95, None, "launch-bound if the CPU needs more than 7.95 µs a kernel; unknown here: stacks were recorded"
        )),
    findings=(replace(CHAIN, module="ViT_0/Block_3", modules=("ViT_0/Block_3",), source=None, flow="assumed"),),
)  # fmt: skip

FOLDED = Attempt(
    strategy="fuse_modules", outcome="same", kept=True, reason="cuDNN adds the folded bias in a kernel of its own.",
    findings=("FA101#1",), sites=Sites(matched=3, applied=3), kernels=KernelCount(10, 10, (("aten::batch_norm", 3),)),
    verification=Verification("agrees", "cuda", 0.002, 1.02, 3.0, 4),
    before=Timing(0.462, (0.4614, 0.4626), (0.462,) * 50), after=Timing(0.4611, (0.4605, 0.4617), (0.4611,) * 50),
    speedup=Speedup(1.002, (0.998, 1.006), (0.99, 1.01)),
    credits=(Credit("FA101#1", Range(90, 104, 111), 3, 0, False, 0.9, (-0.9, 2.8)),),
)  # fmt: skip
COMPILED = Attempt(
    strategy="compile", outcome="faster", kept=True, findings=("FA101#1", "FA103#1"), closed=("FA101#1", "FA103#1"),
    sites=Sites(matched=3, applied=3),
    kernels=KernelCount(10, 4, (("aten::add", 1), ("aten::relu", 3)), (("triton", 1),)),
    verification=Verification("agrees", "cuda", 0.002, 0.97, 3.0, 4),
    before=Timing(0.4611, (0.4605, 0.4617), (0.4611,) * 50, 102_760_448),
    after=Timing(0.278, (0.2774, 0.2786), (0.278,) * 50, 51_380_224),
    speedup=Speedup(1.6586, (1.655, 1.665), (0.99, 1.01)), compile_s=14.0, break_even_calls=76000, on=("fuse_modules",),
    credits=(Credit("FA101#1", Range(90, 104, 111), 3, 3, True, 183.1, (182.0, 184.2), 2),
             Credit("FA103#1", Range(60, 68, 74), 4, 3, True, 183.1, (182.0, 184.2), 2)),
)  # fmt: skip
APPLY = replace(
    PROFILE, command="apply", attempts=(FOLDED, COMPILED), result=Speedup(1.662, (1.66, 1.67), (0.99, 1.01)),
    before=FOLDED.before, after=COMPILED.after,
    timeline_after=TimelineSummary(
        basis="measured", devices=(DeviceSummary(0, 4, 276.0, 277.0, 276.0, 1, "NVIDIA H100 80GB HBM3"),),
        step_us=277.0, by_kind=(KindSummary("conv", 3, 128.0), KindSummary("fused", 1, 148.0)),
        kernels=KernelTable(
            total=4, index=(0, 1, 2, 3), name=("cudnn::conv",) * 3 + ("triton_poi_fused_add_relu_0",),
            kind=("conv",) * 3 + ("fused",), op=("aten::conv2d",) * 3 + ("",), module=("conv1", "conv2", "conv3", ""),
            source=("",) * 4, device=(0,) * 4, stream=(7,) * 4, start_us=(0.0, 43.0, 86.0, 129.0),
            dur_us=(42.0, 43.0, 43.0, 148.0), group=(-1,) * 4, bytes=(-1,) * 4,
        ),
    ),
    files=("out/recipe.json", "out/load_optimized.py"),
)  # fmt: skip

NOT_TRIED = replace(
    CPU_PROFILE, command="apply", result=None,
    attempts=(
        Attempt(
            strategy="cudagraph", outcome="not_tried",
            reason="It needs a CUDA device; checked without one: nothing else stands in its way.",
            notes=("forward was captured on two inputs without a sync.",),
        ),
    ),
)  # fmt: skip
REFUSED = replace(
    CPU_PROFILE, command="apply", result=None,
    attempts=(
        Attempt(
            strategy="fuse_modules", outcome="refused", reason="No site is legal.",
            sites=Sites(0, 0, (Refusal("conv4, bn4", "conv4 has a forward hook, which a fold would skip",
                                       Source("/home/someone/train.py", 88)),)),
        ),
    ),
)  # fmt: skip
PREDICTED = replace(
    PROFILE, environment=CPU, latency=None,
    timeline=replace(PROFILE.timeline, basis="predicted", steps=1, step_us=541.8) if PROFILE.timeline else None,
    warnings=(Notice("W40", "60 % of the predicted time is not calibrated: rely on kernels and bytes."),),
)  # fmt: skip
EMPTY = Report(tool=TOOL, created=CREATED, command="analyze", source="empty.json",
               timeline=TimelineSummary(basis="recorded"))  # fmt: skip


def at(batch: int, median_ms: float, idle: float, *findings: Finding) -> Report:
    """The block at a batch size, launch-bound or not."""
    spec = replace(BLOCK.inputs[0], shape=(batch, 256, 56, 56))
    return replace(
        PROFILE, workload=replace(BLOCK, batch=batch, inputs=(spec,)), findings=findings,
        latency=Timing(median_ms, (median_ms, median_ms), (median_ms,) * 200),
        fusion=replace(PROFILE.fusion, launch_bound=LaunchBound(7.9, idle)),
    )  # fmt: skip


REPLAY = Finding(
    id="FA301#1", rule="FA301", title="Replay the step as a graph", module="", saving=bound(0, 40, 30),
    remedies=("cudagraph",),
)  # fmt: skip
BATCHES = replace(
    at(1, 0.064, 0.62, REPLAY), variants=(at(8, 0.08, 0.0, FOLD), replace(at(64, 0.48, 0.0), warnings=(LOUD,)))
)
GENERATE = replace(
    PREDICTED, workload=replace(BLOCK, entry="prefill", inputs=(TensorSpec("input_ids", (2, 128), "int64"),)),
    variants=(
        replace(PREDICTED, workload=replace(BLOCK, entry="decode", inputs=(TensorSpec("input_ids", (2, 1), "int64"),))),
    ),
)  # fmt: skip

ALL = {
    "profile": PROFILE, "cpu_profile": CPU_PROFILE, "trace": TRACE, "apply": APPLY, "not_tried": NOT_TRIED,
    "refused": REFUSED, "predicted": PREDICTED, "empty": EMPTY, "batches": BATCHES,
    "generate": GENERATE,
}  # fmt: skip
