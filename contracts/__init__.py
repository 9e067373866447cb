"""The promise: what may diverge between two kernels, how sure we must be, what to do if it does.

Everything in this package is pure: no I/O, no clock, no randomness, no environment.
Time and identity come in as arguments.
"""
