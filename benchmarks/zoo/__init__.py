"""The tool on architectures nobody here wrote; see :mod:`benchmarks.zoo.__main__`."""
