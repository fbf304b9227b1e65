"""Apply settings to a command from outside, and say what to change for good.

``prepare``   the command and the environment with which a trial runs
``advise``    the kept settings as the user's own command, file and code, without brim
"""

from brim.tune.apply.advice import advise
from brim.tune.apply.preparing import Alternate, Prepared, prepare

__all__ = ["Alternate", "Prepared", "advise", "prepare"]
