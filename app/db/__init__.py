"""Tables, sessions, queries."""
