"""What the shell offers where a name is to be typed. It imports neither torch nor pandas, and runs no plug-in."""

from collections.abc import Iterable

Offers = list[tuple[str, str]]
"""Words with what each is, as the shell shows it."""


def strategies(incomplete: str) -> Offers:
    """The next strategy after those named already, ``fuse_modules,comp``; ``auto`` stands alone."""
    from fusionadvisor import catalog

    named, comma, word = incomplete.rpartition(",")
    taken = {name.strip() for name in named.split(",")}
    alone = () if comma else (catalog.SEARCH,)
    offers = [(f"{named}{comma}{e.id}", e.title) for e in (*catalog.strategies(), *alone) if e.id not in taken]
    return _starting(f"{named}{comma}{word}", offers)


def parameters(incomplete: str) -> Offers:
    """What ``--set`` takes: a strategy's parameter, up to its value."""
    from fusionadvisor import catalog

    names = ((entry.id, name) for entry in catalog.strategies() for name in catalog.parameters(entry.id))
    return _starting(incomplete, ((f"{strategy}.{name}=", "") for strategy, name in names))


def ids(incomplete: str) -> Offers:
    """Rules and strategies, and ``auto``."""
    from fusionadvisor import catalog

    entries = (*catalog.rules(), *catalog.strategies(), catalog.SEARCH)
    return _starting(incomplete, ((entry.id, entry.title) for entry in entries))


def gpus(incomplete: str) -> Offers:
    """GPUs that kernels can be predicted for, as one types them, ``a100-80gb-sxm``."""
    from fusionadvisor.capture.predicted.gpus import named, predictable

    offers = [(name.lower().replace(" ", "-"), f"{named(name).gpu.peak_gbs:,.0f} GB/s") for name in predictable()]
    return _starting(incomplete, [*offers, ("none", "no prediction beside a CPU run")])


def limits(incomplete: str) -> Offers:
    """What ``--fail-on`` takes: a rule, or the name of a figure that a limit follows."""
    from fusionadvisor import catalog
    from fusionadvisor.report.quantities import QUANTITIES

    rules = [(entry.id, entry.title) for entry in catalog.rules()]
    return _starting(incomplete, [*rules, *((f"{q.name}>", q.meaning) for q in QUANTITIES)])


def topics(incomplete: str) -> Offers:
    """What can be listed."""
    return _starting(incomplete, (("rules", ""), ("strategies", ""), ("gpus", "GPUs with known bandwidth")))


def devices(incomplete: str) -> Offers:
    """Where a model can run."""
    return _starting(incomplete, (("cuda", ""), ("cpu", "")))


def dtypes(incomplete: str) -> Offers:
    """What autocast can run in."""
    return _starting(incomplete, (("bf16", ""), ("fp16", "")))


def _starting(typed: str, offers: Iterable[tuple[str, str]]) -> Offers:
    """Those that begin with what was typed, in the case it was typed in: names are taken in any."""
    return [(typed + word[len(typed) :], what) for word, what in offers if word.lower().startswith(typed.lower())]
