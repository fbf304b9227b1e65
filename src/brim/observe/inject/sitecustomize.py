"""Python imports this at start when brim's folder is first on PYTHONPATH.

It must work in any Python from 3.8 on, with or without brim installed, and must never be the
reason why the user's program fails.  A ``sitecustomize`` of the user's own runs right after.
"""

import os
import sys


def _start() -> None:
    if not os.environ.get("BRIM_RUN_DIR"):
        return
    try:
        from _brim_hooks import boot

        boot.start()
    except Exception as error:
        if os.environ.get("BRIM_DEBUG"):
            sys.stderr.write("brim: hooks are off: %r\n" % (error,))


def _run_the_users_own() -> None:
    """Only one sitecustomize is imported per process; hand over to the one we hide."""
    import importlib.util
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start()
_run_the_users_own()
