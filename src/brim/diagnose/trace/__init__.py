"""What a profiler's trace says: exact device times, each idle moment's cause, and the gain."""

from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.diagnosis import diagnose_traces

__all__ = ["TraceContext", "diagnose_traces"]
