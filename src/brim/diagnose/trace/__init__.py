"""What a profiler's trace says: exact device times, each idle moment's cause, and the gain."""
