"""``python -m tests.fakecuda [--venv DIR] [--no-compute] [COMMAND ...]``: run a command on the fake CUDA device."""

import argparse
import os
import sys
from pathlib import Path

from tests.fakecuda.environment import UnavailableError, environment, libraries, variables


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fakecuda",
        description="Run a command on a CUDA device that is not there: the CUDA build of torch on libraries that "
        "record each launch and compute each op on the CPU. Without a command: python -m pytest tests/gpu.",
    )
    parser.add_argument("--venv", type=Path, help="the environment; else FAKECUDA_VENV, or one in the cache folder")
    parser.add_argument("--no-compute", action="store_true", help="record launches alone: faster, but no results")
    parser.add_argument("--install-limit", type=float, metavar="SECONDS", help="give up installing after so long")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, such as: fusion-advisor doctor")
    options = parser.parse_args()
    try:
        venv = environment(options.venv, options.install_limit)
        built = libraries(venv)
    except UnavailableError as error:
        print(f"no fake CUDA device: {error}", file=sys.stderr)
        sys.exit(3)
    command = options.command or ["python", "-m", "pytest", "tests/gpu"]
    if command[0] == "fusion-advisor":  # not installed there: this checkout is what runs
        command = ["python", "-m", "fusionadvisor", *command[1:]]
    if command[0] == "python":
        command[0] = str(venv / "bin/python")
    os.execvpe(command[0], command, dict(variables(venv, built, compute=not options.no_compute)))


if __name__ == "__main__":
    main()
