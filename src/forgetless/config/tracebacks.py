"""Find the lines of a user's own code that an error came from. Imports no torch."""

import sysconfig
import traceback
from pathlib import Path


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error's traceback that are neither in this package nor in an installed one."""
    installed = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    others = [Path(__file__).parents[1], *(Path(sysconfig.get_path(kind)) for kind in installed)]

    def is_users(frame: traceback.FrameSummary) -> bool:
        file = Path(frame.filename)
        return file.exists() and not any(file.is_relative_to(folder) for folder in others)

    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame)]


def blamed_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the user's frames of an error, or else those of its cause."""
    return user_frames(error) or (user_frames(error.__cause__) if error.__cause__ else [])
