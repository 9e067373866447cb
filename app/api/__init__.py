"""The HTTP API: thin routes over the services."""
