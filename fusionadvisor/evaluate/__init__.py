"""Try a strategy: in a process of its own, verified, then measured."""
