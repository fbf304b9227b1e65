"""From the records of a live run to its account: pure functions, no I/O.

window    which steps count
stacks    what a stack of the training thread stands for
occasional  what only long steps do; placing: what stands before and after a step
evidence  sums over the window, one rank at a time
inputs    which ``input.*`` a wait for the loader is; loaderless: input work without a loader
hosts     garbage collection, locks, compilation, debug modes, periodic work, memory
computes  padding, recomputation, attention: busy, but lost
chores    what a rank does besides training
ranks     who waits for whom
account   all of it as one :class:`~brim.record.findings.Diagnosis`
"""
