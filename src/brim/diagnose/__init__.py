"""Pure functions: records → account → findings → remedies. No torch, no I/O.

The package can be called: ``brim.diagnose(path)`` is :func:`brim.api.diagnose`.
"""

import sys

from brim import Verb

sys.modules[__name__].__class__ = Verb
