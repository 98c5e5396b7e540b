"""This machine: its processors, GPUs, disks, processes and programs."""
