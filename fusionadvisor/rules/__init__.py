"""Quantities to findings: one file a family, one class a rule."""
