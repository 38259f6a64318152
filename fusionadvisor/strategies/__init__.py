"""A model to the same model, fused: one file a strategy."""
