"""From the records of a live run to its account: pure functions, no I/O.

window    which steps count
stacks    what a stack of the training thread stands for
evidence  sums over the window, one rank at a time
inputs    which ``input.*`` a wait for the loader is
hosts     garbage collection, locks, compilation, debug modes, periodic work, memory
computes  padding, recomputation, attention: busy, but lost
ranks     who waits for whom
account   all of it as one :class:`~brim.record.findings.Diagnosis`
"""
