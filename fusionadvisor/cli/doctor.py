"""``fusion-advisor doctor``."""

MARKS = {True: ("yes", "green"), False: ("no ", "red"), None: ("-  ", "dim")}


def doctor() -> int:
    """Check torch, CUDA, driver and profiler on this machine, with a fix for each problem."""
    from rich.text import Text

    from fusionadvisor.capture.environment import diagnose
    from fusionadvisor.cli.output import printing, working

    with working() as say:
        say("asking torch and the profiler")
        checks = diagnose()
    width = max(len(check.name) for check in checks)
    with printing() as console:
        for check in checks:
            mark, style = MARKS[check.ok]
            line = Text.assemble((f"{mark}  ", style), (check.name.ljust(width), "bold"), f"  {check.detail}")
            console.print(line, soft_wrap=True)
            if check.ok is False and check.remedy:
                console.print(Text(f"{' ' * (width + 7)}{check.remedy}", style="dim"), soft_wrap=True)
    return 0
