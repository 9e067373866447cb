"""The command line `kc`."""
