"""Capture and replay: the backend protocol, its CUDA side, and the module that replays instead of running."""
