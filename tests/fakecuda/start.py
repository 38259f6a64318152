"""Run by each Python of the fake device's environment at its start: ops are computed from the moment torch is there."""


def _begin() -> None:
    import importlib.util
    import os
    import sys
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
            return importlib.util.spec_from_file_location(
                name, file, loader=loader, submodule_search_locations=folders
            )

    class AfterTorch:
        """Finds torch as others would, and begins to compute once its module has run."""

        def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
            if name != "torch":
                return None
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return spec
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                importlib.import_module("fakecuda_compute").install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path[:0] = [AfterTorch(), Compute()]  # type: ignore[list-item]


_begin()
