"""Hooks that run inside the measured job: standard library only, Python 3.8 and later.

boot        which modules to patch, once they are imported
recorder    the counters of the running step, and the files they go to
sampler     a thread that looks at the training thread's stack up to 20 times a second
training    optimizer steps, backward, evaluation, checkpoints, caches, compilation
loader      the training process's side of a torch DataLoader
worker      the loader workers' side
batches     real and padding tokens of the batches that the loop receives
interpreter garbage collection, tracers, anomaly mode
transfers   reads of device values, by source line
window      one short torch.profiler window
cure        remedies applied from outside, in modules cure_*; only in a job that brim tune starts
facts       what process this is: versions, devices, cores, allow-listed variables
"""
