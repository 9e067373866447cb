"""The data plane: an OpenAI-compatible front of one deployment, routed as its routing table says."""
