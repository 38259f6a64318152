"""Load and run the user's code so that what goes wrong in it is told in one sentence, with the line it happened at."""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType, ModuleType, TracebackType

import torch
from torch import nn

from fusionadvisor.errors import FusionAdvisorError, InputError
from fusionadvisor.flow.frames import is_user_file

HOOKS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""Where a module keeps its hooks, and what they are called."""


def hooked(model: nn.Module) -> dict[str, str]:
    """Say of each module path with hooks which it has: ``{"layer1.conv2": "has a forward hook"}``."""
    found = {path: [word for attribute, word in HOOKS.items() if getattr(module, attribute, None)]
             for path, module in model.named_modules()}  # fmt: skip
    return {path: f"has a {' and a '.join(words)}" for path, words in found.items() if words}


@contextmanager
def user_code(doing: str, hint: str = "") -> Iterator[None]:
    """Run the user's code; turn whatever it raises into an :class:`InputError` that starts with ``doing``."""
    try:
        yield
    except FusionAdvisorError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{doing}: {what_happened(error)}", hint or _remedy(error)) from error


def what_happened(error: BaseException) -> str:
    """``model.py:31: ValueError: too many classes``: the last line of the user's own code, and the message."""
    place = _place(error)
    message = first_line(_telling(error.msg if isinstance(error, SyntaxError) else str(error)))
    if isinstance(error, SystemExit):
        message = f"it ended the program with exit code {error.code}"
        return f"{place}: {message}" if place else message
    return f"{place + ': ' if place else ''}{type(error).__name__}{': ' + message if message else ''}"


TELLING = 60
"""Characters from which a line of a message is taken to say what happened."""


def _telling(message: str) -> str:
    """The lines of a message as one, as many of them as it takes to say something."""
    said = ""
    for line in message.splitlines():
        said = f"{said} {line.strip()}".strip()
        if len(said) >= TELLING:
            break
    return said


def first_line(message: str, limit: int | None = 240) -> str:
    """The first line of a message that says something, shortened to a limit, without a full stop."""
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return (line[: limit - 1] + "…" if limit and len(line) > limit else line).rstrip(".")


def one_line(error: BaseException) -> str:
    """The whole first line of an error's message, without a full stop; its type where it has no message."""
    return first_line(str(error), limit=None) or type(error).__name__


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if is_user_file(f.filename)]
    return f"{shown(theirs[-1].filename)}:{theirs[-1].lineno}" if theirs else ""


def shown(filename: str | Path) -> str:
    """A path as people write it: relative to the current folder where it lies below it."""
    path = Path(filename)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"Install '{error.name}', or run from the folder it can be imported from."
    if isinstance(error, SystemExit):
        return 'Put what only a script should do under `if __name__ == "__main__":`.'
    if isinstance(error, torch.OutOfMemoryError):
        return "Use a smaller batch."
    return ""


_OF_INPUTS = re.compile(
    r"\bshapes?\b|\bsizes?\b|dimension|\bdims?\b|dtype|scalar type|\bmat1\b|channels|out of range|"
    r"positional argument|keyword argument|broadcast|must match|\bexpected\b|same device|tensors? .*type",
    re.IGNORECASE,
)


def about_inputs(error: BaseException) -> bool:
    """Whether an error reads as one that other inputs would not raise: of sizes, types or arguments."""
    kinds = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
    return isinstance(error, kinds) and bool(_OF_INPUTS.search(str(error)))


def failing_module(error: BaseException, model: nn.Module) -> str:
    """Path of the innermost submodule whose call raised, empty where it was none."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    step: TracebackType | None = error.__traceback__
    while step is not None:
        owner = step.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            found = paths.get(id(owner), found)
        step = step.tb_next
    return found


def load_file(path: Path) -> ModuleType:
    """Run a Python file as an imported module, its folder on the import path as ``python file.py`` would have it.

    Raises:
        InputError: It has a syntax error, an import fails, or it raises or exits.
    """
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file.", "Give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with user_code(f"{path.name} cannot be loaded"):
            spec.loader.exec_module(module)
    except InputError:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


def _module_name(path: Path) -> str:
    """Its stem, so that files beside it import the same module; a name of its own where the stem means another one."""
    stem = path.stem
    known = sys.modules.get(stem)
    if known is not None:
        taken = getattr(known, "__file__", None) != str(path)
    else:
        found = importlib.util.find_spec(stem) if stem.isidentifier() else None
        taken = found is None or found.origin != str(path)
    return f"user_{abs(hash(str(path))):x}_{stem}" if taken else stem


def load_module(name: str) -> ModuleType:
    """Import a dotted module, the current folder on the import path as ``python -m`` would have it.

    Raises:
        InputError: There is no such module, or importing it fails.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise InputError(f"There is no file or module '{name}'.", "Give a path to a .py file, or an importable module.")
    with user_code(f"{name} cannot be imported"):
        return importlib.import_module(name)


def set_mode(model: nn.Module, *, training: bool) -> bool:
    """Put a model in training or evaluation mode; False for an exported program, which has its mode built in."""
    if isinstance(model, torch.fx.GraphModule) and isinstance(vars(model).get("train"), MethodType):
        return False
    model.train(training)
    return True
