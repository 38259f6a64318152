"""GPUs a kernel stream can be predicted for: what decides which kernels the libraries choose."""

from dataclasses import dataclass

from fusionadvisor.analysis.devices import GPUS, Gpu
from fusionadvisor.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Silicon:
    """A GPU of the device table with its multiprocessors and compute capability."""

    gpu: Gpu
    multiprocessors: int
    capability: tuple[int, int]

    @property
    def name(self) -> str:
        """As the device table calls it."""
        return self.gpu.name

    @property
    def recorded_name(self) -> str:
        """A name that :func:`fusionadvisor.analysis.devices.find` finds, as a driver would print it."""
        return f"NVIDIA {self.gpu.name}"


_SILICON: dict[str, tuple[int, tuple[int, int]]] = {
    # multiprocessors: NVIDIA's architecture whitepapers (Volta 2017, Turing 2018, Ampere 2020, Hopper 2022, Blackwell
    # 2024); compute capability: CUDA C++ Programming Guide, "Compute Capabilities"
    "V100": (80, (7, 0)),
    "T4": (40, (7, 5)),
    "A100 40GB": (108, (8, 0)),
    "A100 80GB PCIe": (108, (8, 0)),
    "A100 80GB SXM": (108, (8, 0)),
    "H100 SXM": (132, (9, 0)),
    "H100 PCIe": (114, (9, 0)),
    "H200": (132, (9, 0)),
    "B200": (148, (10, 0)),
}

DEFAULT = "H100 SXM"


def predictable() -> tuple[str, ...]:
    """Names of the GPUs that can be asked for."""
    return tuple(gpu.name for gpu in GPUS if gpu.name in _SILICON)


def named(name: str) -> Silicon:
    """Return a GPU by its name in any case, or by the start of it that leaves no number cut: ``h100``, ``a100-80gb``.

    Raises:
        InputError: None of that name can be predicted for.
    """
    wanted = _plain(name)
    known = {gpu.name: gpu for gpu in GPUS}
    matches = [k for k in _SILICON if _plain(k) == wanted] or [k for k in _SILICON if _begins(k, wanted)]
    if not wanted or not matches:
        why = "only the kernels of NVIDIA GPUs are predicted" if wanted.startswith("mi") else "it is not in the table"
        raise InputError(f"Kernels cannot be predicted for the GPU '{name}': {why}.", _alike(name))
    # the common form of several: SXM before PCIe, the larger memory before the smaller
    best = next((m for m in reversed(matches) if "SXM" in m), matches[0])
    return Silicon(known[best], *_SILICON[best])


def _begins(name: str, wanted: str) -> bool:
    """Whether a name begins with what is wanted: its whole first word, and no number cut short."""
    first, *rest = (_plain(word) for word in name.split())
    if not wanted.startswith(first):
        return False
    wanted = wanted.removeprefix(first)
    more = "".join(rest)
    return more.startswith(wanted) and not (wanted[-1:].isdigit() and more[len(wanted) :][:1].isdigit())


def _alike(name: str) -> str:
    """The nearest name by the word that tells the model, which all forms of a GPU share."""
    models = tuple(dict.fromkeys(known.split()[0] for known in predictable()))
    return did_you_mean(_plain(name), models)


def _plain(name: str) -> str:
    return "".join(c for c in name.lower().removeprefix("nvidia") if c.isalnum())
