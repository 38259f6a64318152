"""``python -m fusionadvisor`` and the ``fusion-advisor`` command."""

import os


def main() -> None:
    """Run the command line and exit with its documented code."""
    # before torch loads: threads that spin while they wait make CPU latencies vary several times on shared cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from fusionadvisor.cli.app import run

    raise SystemExit(run())


if __name__ == "__main__":
    main()
