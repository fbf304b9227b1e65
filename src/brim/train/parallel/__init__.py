"""Training on many devices with torch's DDP, FSDP2 and HSDP, under torchrun."""
