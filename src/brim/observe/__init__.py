"""What runs inside or beside the measured job: injection, hooks, sampling of devices and host.

The package can be called: ``with brim.observe(folder):`` is :func:`brim.api.observe`.
"""

import sys

from brim import Verb

sys.modules[__name__].__class__ = Verb
