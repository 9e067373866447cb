"""What the control plane can do. Functions take a session and never commit."""
