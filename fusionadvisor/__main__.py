"""``python -m fusionadvisor`` and the ``fusion-advisor`` command."""


def main() -> None:
    """Run the command line and exit with its documented code."""
    from fusionadvisor.cli.app import run

    raise SystemExit(run())


if __name__ == "__main__":
    main()
