"""Run by each Python of the fake device's environment at its start: ops are computed from the moment torch is there."""

import sys


def _begin() -> None:
    import importlib.util
    import os
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from pathlib import Path
    from types import CodeType, ModuleType
    from typing import Any

    folder = Path(os.environ["FAKECUDA_START"]).parent / "compute"

    class AsTorch(SourceFileLoader):
        """Names torch's folder as where the code lies: to a program, what computes is a part of torch."""

        def get_code(self, fullname: str) -> CodeType:
            name = str(Path(sys.modules["torch"].__file__ or "").parent / "_fakecuda" / Path(self.path).name)
            code: CodeType = compile(self.get_data(self.path), name, "exec")
            return code

    class Compute:
        """Finds the package that computes."""

        def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
            package, _, module = name.partition(".")
            if package != "fakecuda_compute":
                return None
            file = folder / f"{module or '__init__'}.py"
            folders = None if module else [str(folder)]
            loader = AsTorch(name, str(file))
            return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)

    class After:
        """Finds a module as others would, and calls back once it has run."""

        def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
            self._name = name
            self._action = action

        def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
            if name != self._name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return spec
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
        sys.meta_path.insert(0, After(name, action))

    sys.meta_path.insert(0, Compute())
    after_import("torch", lambda _: importlib.import_module("fakecuda_compute").install(after_import))


_STARTED = "_fakecuda_started"
if not hasattr(sys, _STARTED):  # lib64 is lib once more, and so are the files that Python runs at its start
    setattr(sys, _STARTED, True)
    _begin()
