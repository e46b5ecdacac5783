"""Faults for `chaos.py`: processes that are killed, disks that fill up, clocks that jump, and second processes."""
