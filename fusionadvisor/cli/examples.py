"""What ends a command's ``--help``: lines to type. Text of a help keeps its line breaks, so it has none within."""

EXIT_CODES = (
    "Exit codes: 0 done; 1 a condition that you set failed; 2 usage or bad input; 3 not possible on this machine; 4 a "
    "strategy that you asked for was refused, crashed or changed the outputs; 70 an error in this program; 130 "
    "interrupted."
)

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("profile model.py", "find unfused kernels in a model"),
        ("apply --strategy auto", "fuse it, verify it, measure it"),
        ("analyze trace.json.gz", "find them in a recorded trace"),
        ("explain FA101", "what a rule finds, why it matters, what to do"),
    ),
    "profile": (
        ("profile model.py", "the model and its inputs are found by convention"),
        ("profile model.py:Net --input x=float32[8,3,224,224]", "name the model and its input"),
        ("profile model.py --gpu h100", "predict the kernels of another GPU"),
        ("profile train.py --train --amp bf16", "a training step"),
        ("profile weights.ckpt --model net.py:Net", "a checkpoint"),
        ('profile model.py --json r.json --fail-on "syncs>0"', "in CI"),
    ),
    "analyze": (
        ("analyze trace.json.gz", "one trace"),
        ("analyze traces/", "the ranks of one job"),
        ("analyze trace.json.gz --html report.html --perfetto overlay.json", "as HTML and as a Perfetto trace"),
    ),
    "apply": (
        ("apply --strategy fuse_modules,compile", "apply both, in order, to the model profiled last"),
        ("apply model.py --strategy auto --budget 5m", "search for the best combination"),
        ("apply model.py --strategy cudagraph --site decoder.layers", "change one module only"),
        ("apply model.py --strategy compile --set compile.mode=max-autotune", "set a parameter"),
        ("apply model.py --strategy auto --save out/", "save a recipe to load in production"),
    ),
    "run": (
        ("run train.py -- --epochs 1", "like python train.py --epochs 1"),
        ("run train.py --skip 10 --steps 3 --stop", "stop after the profiled steps"),
        ('run train.py --trace "traces/rank{rank}.json"', "keep one trace per rank under torchrun"),
    ),
    "compare": (
        ("compare before.json after.json", "two reports"),
        ("compare eager.json.gz compiled.json.gz --format markdown", "two traces"),
    ),
    "check": (
        ("check r.json --baseline base.json", "exit 1 if the change made it worse"),
        ("check r.json --baseline base.json --update-baseline", "accept the change"),
        ('check r.json --fail-on "kernels>160" --fail-on FA103', "set limits without a baseline"),
    ),
    "list": (
        ("list rules", "rules and the strategies that fix them"),
        ("list gpus", "GPUs with known bandwidth and peak"),
    ),
    "explain": (
        ("explain FA101", "a rule"),
        ("explain cudagraph", "a strategy: what it does and when it refuses"),
    ),
    "doctor": (("doctor", "before the first profile on a machine"),),
}


def epilog(command: str) -> str:
    """Return a command's examples as text, each with what it is for below it."""
    return "\n".join(["Examples:", *(f"  fusion-advisor {line}\n      {what}" for line, what in EXAMPLES[command])])


def paragraphs(docstring: str) -> str:
    """Return a docstring with each paragraph on one line, for the terminal to break."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))
