"""What ends a command's ``--help``: lines to type. Text of a help keeps its line breaks, so it has none within."""

EXIT_CODES = (
    "Exit codes: 0 done; 1 a condition you set does not hold; 2 usage or bad input; 3 this machine cannot; 4 a "
    "strategy you asked for was refused, crashed or changed the outputs; 70 an error in this program; 130 interrupted."
)

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("profile model.py", "what is unfused in a model"),
        ("apply --strategy auto", "fuse it: verified, measured"),
        ("analyze trace.json.gz", "the same findings from a recorded trace"),
        ("explain FA101", "what a rule finds, why it costs, what to do"),
    ),
    "profile": (
        ("profile model.py", "the model and its inputs are found by convention"),
        ("profile model.py:Net --input x=float32[8,3,224,224]", "name them"),
        ("profile model.py --gpu h100", "predict for a GPU that is not here"),
        ("profile train.py --train --amp bf16", "a training step"),
        ("profile weights.ckpt --model net.py:Net", "a checkpoint"),
        ('profile model.py --json r.json --fail-on "syncs>0"', "in CI"),
    ),
    "analyze": (
        ("analyze trace.json.gz", "one trace"),
        ("analyze traces/", "the ranks of one job"),
        ("analyze trace.json.gz --html report.html --perfetto overlay.json", "pages to look at"),
    ),
    "apply": (
        ("apply --strategy fuse_modules,compile", "to the model profiled last, one after the other"),
        ("apply model.py --strategy auto --budget 5m", "search for the best combination"),
        ("apply model.py --strategy cudagraph --site decoder.layers", "a part of it"),
        ("apply model.py --strategy compile --set compile.mode=max-autotune", "with a parameter"),
        ("apply model.py --strategy auto --save out/", "keep the recipe, to load in production"),
    ),
    "run": (
        ("run train.py -- --epochs 1", "as python train.py --epochs 1 would"),
        ("run train.py --skip 10 --steps 3 --stop", "end it once they are profiled"),
        ('run train.py --trace "traces/rank{rank}.json"', "keep the trace, one a rank under torchrun"),
    ),
    "compare": (
        ("compare before.json after.json", "two reports"),
        ("compare eager.json.gz compiled.json.gz --format markdown", "two traces"),
    ),
    "check": (
        ("check r.json --baseline base.json", "exit 1 if a change made it worse"),
        ("check r.json --baseline base.json --update-baseline", "take the change into it"),
        ('check r.json --fail-on "kernels>160" --fail-on FA103', "limits without a baseline"),
    ),
    "list": (
        ("list rules", "with the strategies that answer each"),
        ("list gpus", "whose bandwidth and peak are known"),
    ),
    "explain": (
        ("explain FA101", "a rule"),
        ("explain cudagraph", "a strategy: what it does, when it refuses"),
    ),
    "doctor": (("doctor", "before the first profile on a machine"),),
}


def epilog(command: str) -> str:
    """Return a command's examples as text, each with what it is for below it."""
    return "\n".join(["Examples:", *(f"  fusion-advisor {line}\n      {what}" for line, what in EXAMPLES[command])])


def paragraphs(docstring: str) -> str:
    """Return a docstring with each paragraph on one line, for the terminal to break."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))
