"""What the fake device needs: an environment with the CUDA build of torch, and the libraries built from ``device/``.

Both are kept in a cache folder, so that only the first run installs and builds.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CORE = "libfakecuda_core.so"
LIBRARIES = {
    "libcuda.so.1": ["driver.cpp"],
    "libcudart.so.13": ["cudart.cpp"],
    "libcublasLt.so.13": ["cublas.cpp"],
    "libcublas.so.13": ["-DBLAS", "cublas.cpp"],
    "libcudnn.so.9": ["cudnn.cpp"],
    "libcupti.so.13": ["cupti.cpp"],
}
NVML = "libnvidia-ml.so.1"
HEADERS = ["nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*"]
NOT_FOR_TESTS = {"fusion-advisor", "ruff", "mypy", "import-linter", "pandas-stubs", "build", "hatchling", "playwright"}
HOOK = 'import os; os.environ.get("FAKECUDA_START") and exec(open(os.environ["FAKECUDA_START"]).read())\n'
SMI = """#!/bin/sh
case "$*" in
  *driver_version*) echo 580.65.06 ;;
  *clocks.max.sm*) echo 1980 ;;
  *clocks.sm*) echo 1980 ;;
  *--query-gpu=name*) echo "${FAKECUDA_NAME:-NVIDIA H100 80GB HBM3}" ;;
  *) echo "NVIDIA-SMI 580.65.06 (fake)" ;;
esac
"""


class UnavailableError(Exception):
    """The fake device cannot be had here; the message says why."""


def cache() -> Path:
    """Where environments, libraries and compiled kernels are kept."""
    told = os.environ.get("FAKECUDA_CACHE")
    folder = Path(told) if told else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fakecuda"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Let one process at a time install or build."""
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def requirements() -> list[str]:
    """What the program and its tests need, from pyproject.toml; torch is named by its exact version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = [*project["dependencies"], *optional["hf"], *optional["dev"]]
    return [need for need in wanted if re.split(r"[\[<>=~ ]", need)[0] not in NOT_FOR_TESTS | {"torch"}]


def torch_version() -> str:
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned, "constraints.txt no longer pins torch"
    return pinned[1]


def environment(venv: Path | None, limit_s: float | None = None) -> Path:
    """The folder of the environment: the one given, or the cached one, installed where it is missing.

    Raises:
        UnavailableError: It cannot be installed here, or not within the limit.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError("the fake device is built for Linux on x86-64 only")
    if venv is None:
        told = os.environ.get("FAKECUDA_VENV")
        venv = Path(told) if told else cache() / f"venv-{_hash((ROOT / 'constraints.txt').read_bytes())}"
    complete = venv / "fakecuda-complete"
    with alone("install"):
        if not complete.exists():
            _install(venv, limit_s)
        [packages] = (venv / "lib").glob("python3*/site-packages")
        hook = packages / "fakecuda.pth"
        if not hook.exists() or hook.read_text() != HOOK:  # another Python may be starting and read it
            (packages / "fakecuda.new").write_text(HOOK)
            (packages / "fakecuda.new").replace(hook)
        complete.touch()
    return venv


def _install(venv: Path, limit_s: float | None) -> None:
    # "===" takes PyPI's build, which is the CUDA one, and no "+cpu" build that pip is set up to prefer
    needs = [f"torch==={torch_version()}", *HEADERS, *requirements()]
    constraints = "\n".join(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("torch==")
    )
    print(f"installing the CUDA build of torch into {venv} (several GB)", file=sys.stderr, flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(constraints)
        file.flush()
        try:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=limit_s, stdout=sys.stderr)
            pip: list[str | Path] = [venv / "bin/python", "-m", "pip", "install", "--quiet", "-c", file.name, *needs]
            subprocess.run(pip, check=True, timeout=limit_s, stdout=sys.stderr)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"the CUDA build of torch was not installed within {limit_s:g} s") from None
        except subprocess.CalledProcessError as error:
            raise UnavailableError(f"the CUDA build of torch could not be installed: {error}") from None


def libraries(venv: Path) -> Path:
    """The folder with the built libraries, cached by what they are built from.

    Raises:
        UnavailableError: There is no compiler, or it failed.
    """
    [nvidia] = (venv / "lib").glob("python3*/site-packages/nvidia")
    sources = sorted((HERE / "device").glob("*.*"))
    built = cache() / f"build-{_hash(*(path.read_bytes() for path in sources), str(venv.resolve()).encode())}"
    with alone("build"):
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                _build(nvidia, Path(folder))
                shutil.copytree(folder, built)
    return built


def _build(nvidia: Path, out: Path) -> None:
    include = nvidia / "cu13/include"
    for header in ("crt/host_defines.h", "nv/target"):
        if not (include / header).exists():
            raise UnavailableError(f"{include / header} is missing: pip install {' '.join(HEADERS)}")
    generated = out / "generated"
    generated.mkdir()
    base = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", f"-I{include}", f"-I{generated}", f"-L{out}"]

    def compile(name: str, *arguments: str | Path) -> None:
        _call([*base, f"-Wl,-soname,{name}", "-o", out / name, *arguments])

    _call([sys.executable, "gen.py", nvidia, generated])
    compile(CORE, "core.cpp")
    compile(NVML, "nvml.cpp")
    for name, sources in LIBRARIES.items():
        versions = generated / f"{name}.map"
        script = [f"-Wl,--version-script={versions}"] if versions.exists() else []
        compile(name, *sources, generated / f"{name}.S", "-lfakecuda_core", "-ldl", "-Wl,-rpath,$ORIGIN", *script)
    smi = out / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)


def _call(command: list[str | Path]) -> None:
    try:
        done = subprocess.run(command, cwd=HERE / "device", capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UnavailableError(f"{command[0]} is not installed here, and the libraries have to be built") from None
    if done.returncode:
        raise UnavailableError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")


def variables(venv: Path, built: Path, *, compute: bool) -> Mapping[str, str]:
    """The environment variables under which a process and its children see the fake device."""
    paths = [str(built / "bin"), str(venv / "bin"), os.environ.get("PATH", "")]
    python_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {
        **os.environ,
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join(python_path),
        # torch's libraries have an RPATH, which LD_LIBRARY_PATH does not beat; preloaded ones are found by their soname
        "LD_PRELOAD": " ".join(str(built / name) for name in (CORE, *LIBRARIES, NVML)),
        "LD_LIBRARY_PATH": str(built),
        "TRITON_LIBCUDA_PATH": str(built),
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR") or str(cache() / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(cache() / "inductor"),
        "FAKECUDA": "compute" if compute else "launch",
    }
    variables.pop("VIRTUAL_ENV", None)
    if compute:
        variables |= {
            "FAKECUDA_START": str(HERE / "start.py"),
            "FAKECUDA_CORE": str(built / CORE),
            # what Inductor compiled is computed through the graph it compiled, which a cached result no longer has
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
    return variables


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
