"""The measurement: runs the two kernels on the same tokens."""
