"""What can go wrong in words a user can act on: what happened, why, and what to do, with the exit code it means."""

from typing import ClassVar


class FusionAdvisorError(Exception):
    """An expected failure. Printed as one sentence; a traceback appears only with ``--debug``.

    Args:
        what: One sentence saying what went wrong, naming the file, module or option.
        hint: One sentence saying what to do about it; empty where nothing can be done.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}  {self.hint}".rstrip()

    def __reduce__(self) -> tuple[type["FusionAdvisorError"], tuple[str, str]]:
        # exceptions cross process borders by pickle, which would otherwise drop the hint
        return type(self), (self.what, self.hint)


class GateError(FusionAdvisorError):
    """A condition the user asked for does not hold (``--fail-on``, ``check``)."""

    exit_code = 1


class InputError(FusionAdvisorError):
    """Usage or bad input: a missing file, an unknown name, shapes that do not fit."""

    exit_code = 2


class EnvironmentUnfitError(FusionAdvisorError):
    """This machine cannot do what was asked: no CUDA device, no CUPTI permission, a package that is not installed."""

    exit_code = 3


class StrategyError(FusionAdvisorError):
    """A strategy that was asked for by name was refused, crashed or diverged."""

    exit_code = 4


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str:
    """Return ``Did you mean 'x'?`` for the closest of ``known``, or a list of them when none is close."""
    from difflib import get_close_matches

    alike = str.maketrans("ol", "01")  # as hands and eyes mix them up: FA1O1
    folded = {name.lower().translate(alike): name for name in known}
    if close := get_close_matches(word.lower().translate(alike), list(folded), n=1, cutoff=0.6):
        return f"Did you mean '{folded[close[0]]}'?"
    return f"Known: {', '.join(known)}."
