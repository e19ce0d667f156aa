"""Write numbers in readable units: 1.48 PFLOPs, 34 MB, 11.2 M, 2 min 10 s. Imports no torch."""

import math


def si_prefix(value: float) -> str:
    """Return a number with three digits and a unit prefix: 1.3 G."""
    if not value:
        return "0"
    rounded = float(f"{value:.3g}")
    power = max(0, min(math.floor(math.log10(rounded)) // 3, 6))
    return f"{rounded / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}".strip()


def quantity(value: float, unit: str) -> str:
    """Return a number with three digits, a prefix and a unit: 1.48 PFLOPs, 34 MB, 12 FLOPs."""
    number, _, prefix = si_prefix(value).partition(" ")
    return f"{number} {prefix}{unit}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units: 0.42 s, 34 s, 2 min 10 s, 3 h 5 min, 2 d 4 h."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, whole = divmod(whole, size)
        parts.append((number, unit))
    first = next(index for index, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)
