"""``fusion-advisor doctor``."""

from rich.text import Text

_MARKS = {True: ("yes", "green"), False: ("no ", "red"), None: ("–  ", "dim")}


def doctor() -> int:
    """Check what this machine can do: torch, CUDA, driver, profiler; each with what to do where it cannot."""
    from fusionadvisor.capture.environment import diagnose
    from fusionadvisor.cli.output import printing, working

    with working() as say:
        say("asking torch and the profiler")
        checks = diagnose()
    with printing() as console:
        for check in checks:
            mark, style = _MARKS[check.ok]
            console.print(
                Text.assemble((f"{mark}  ", style), (check.name, "bold"), f"  {check.detail}"), soft_wrap=True
            )
            if not check.ok and check.remedy:
                console.print(Text(f"     {check.remedy}", style="dim"), soft_wrap=True)
    return 0
