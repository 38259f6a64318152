"""Numbers as people read them. Rounding is deliberate: digits that noise makes are not shown."""

_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def time_us(us: float) -> str:
    """Format a duration given in µs: ``7.9 µs``, ``462.0 µs``, ``12.3 ms``, ``1.20 s``."""
    size = abs(us)
    if size >= 999_995:
        return f"{us / 1e6:.2f} s"
    if size >= 9_999.5:
        return f"{us / 1e3:.1f} ms"
    return f"{us:.2f} µs" if 0 < size < 1 else f"{us:.1f} µs"


def number_us(us: float) -> str:
    """Format µs without the unit, rounded to what a bound can mean: ``3.4``, ``90``, ``1240``."""
    return f"{us:.1f}" if abs(us) < 9.95 else f"{us:.0f}"


def range_us(low: float, high: float) -> str:
    """Format a bound in µs: ``90–111 µs``, ``1.2–3.4 ms``; one value where both ends read the same."""
    if high >= 9_999.5:
        left, right, unit = f"{low / 1e3:.1f}", f"{high / 1e3:.1f}", "ms"
    else:
        left, right, unit = number_us(low), number_us(high), "µs"
    return f"{left} {unit}" if left == right else f"{left}–{right} {unit}"


def size_bytes(count: float) -> str:
    """Format a byte count in decimal units, as GPU bandwidths are quoted: ``102.8 MB``."""
    for unit, scale in _BYTES:
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """Format a share in [0, 1]: ``36 %``, ``0.4 %``, ``<0.1 %``."""
    value = 100 * share
    if 0 < abs(value) < 0.05:
        return "<0.1 %"
    return f"{value:.1f} %" if 0 < abs(value) < 0.95 else f"{value:.0f} %"


def plural(count: int, word: str) -> str:
    """``1 kernel``, ``3 kernels``; thousands set apart."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
