"""Run by each Python of the fake device's environment at its start: ops are computed from the moment torch is there."""


def _begin() -> None:
    import importlib.util
    import os
    import sys
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType
    from typing import Any

    folder = Path(os.environ["FAKECUDA_START"]).parent / "compute"

    def install() -> None:
        name = "fakecuda_compute"
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        module.install()

    class AfterTorch:
        """Finds torch as others would, and installs once its module has run."""

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
                install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    sys.meta_path.insert(0, AfterTorch())  # type: ignore[arg-type]


_begin()
