"""A file of the user's that a strategy runs, with the files beside it that it imports: found, and run as they are."""

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from fusionadvisor.errors import InputError
from fusionadvisor.workload.usercode import user_code, what_happened

_UNNAMED = frozenset(
    {"__import__", "eval", "exec", "import_module", "load", "load_inline", "load_library", "open", "read_bytes",
     "read_text", "run_module", "run_path", "spec_from_file_location"}
)  # fmt: skip
"""Functions by which code reaches files that its text need not name."""


def split(where: str) -> tuple[Path, str]:
    """``FILE.py:NAME`` as a file and a name.

    Raises:
        InputError: If it is not spelled so, or there is no such file.
    """
    file, _, name = where.rpartition(":")
    if not name or not Path(file).is_file():
        raise InputError(f"There is no pass '{where}'.", "Name it as my_passes.py:function.")
    return Path(file), name


def beside(path: Path) -> dict[str, Path]:
    """The modules that a file imports from its own folder, and those that they import, by their full names."""
    files: dict[str, Path] = {}
    todo = [(path, "")]
    while todo:
        file, package = todo.pop()
        for name in _imported(_parsed(file), package):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                module = ".".join(parts[:end])
                if module in files or parts[0] in sys.stdlib_module_names or parts[0] == "torch":
                    continue
                if (there := _file_of(path.parent, parts[:end])) is not None:
                    files[module] = there
                    inner = module if there.name == "__init__.py" else module.rpartition(".")[0]
                    todo.append((there, inner))
    return files


def unnamed(path: Path) -> str:
    """The first place where a file, or one beside it that it imports, reaches files its text need not name."""
    for file in (path, *beside(path).values()):
        for node in ast.walk(_parsed(file)):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in _UNNAMED:
                    return f"{file.name}:{node.lineno} ({called})"
    return ""


class PassFile:
    """A file that is run as a module; what it imports from beside it comes from there, whatever else has that name.

    A module that is loaded already from a file of the same content is taken: its classes are those the model is made
    of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._finder = _Finder(beside(path))
        spec = spec_from_file_location(path.stem, path, loader=_Source(path.stem, str(path)))
        assert spec is not None
        self._module = module_from_spec(spec)
        self._ran = False

    def function(self, name: str) -> Any:
        """The function of that name, which finds the modules beside it also when it is called.

        Raises:
            InputError: If the file cannot be run, or has no such function.
        """
        if not self._ran:
            loader = self._module.__loader__
            assert isinstance(loader, _Source)
            with self._finder.active(), user_code(f"{self.path.name} cannot be loaded"):
                loader.exec_module(self._module)
            self._ran = True
        made = getattr(self._module, name, None)
        if not callable(made):
            raise InputError(f"{self.path} has no function '{name}'.", "Name it as my_passes.py:function.")

        def call(*args: Any) -> Any:
            with self._finder.active():
                return made(*args)

        return call


class _Source(SourceFileLoader):
    """Runs the text itself: a cached ``.pyc`` may be of another one."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder(MetaPathFinder):
    """Finds modules by name in files that are known."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files
        self._modules: dict[str, ModuleType] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See ``importlib``."""
        file = self._files.get(fullname)
        if file is None:
            return None
        inner = [str(file.parent)] if file.name == "__init__.py" else None
        loader = _Source(fullname, str(file))
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=inner)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let imports find these files, and leave ``sys.modules`` as it was."""
        held = {name: sys.modules.pop(name) for name in self._files if not self._same(name)}
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            for name in self._files:
                module = sys.modules.get(name)
                if module is not None and isinstance(getattr(module, "__loader__", None), _Source):
                    self._modules[name] = sys.modules.pop(name)
            sys.modules.update(held)

    def _same(self, name: str) -> bool:
        """Whether nothing of that name is loaded, or something of the same content."""
        module = sys.modules.get(name)
        if module is None:
            return True
        origin = getattr(module, "__file__", None)
        try:
            return origin is not None and Path(origin).read_bytes() == self._files[name].read_bytes()
        except OSError:
            return False


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        raise InputError(f"{file} cannot be read: {what_happened(error)}.") from error


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Full names of the modules that code imports, or may: of ``from a import b`` also ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
                base = ".".join((*above, *([node.module] if node.module else [])))
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")


def _file_of(folder: Path, parts: list[str]) -> Path | None:
    there = folder.joinpath(*parts)
    for file in (there / "__init__.py", there.with_suffix(".py")):
        if file.is_file():
            return file
    return None
