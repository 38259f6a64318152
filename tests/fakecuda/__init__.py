"""A CUDA device that is not there: ``python -m tests.fakecuda COMMAND`` runs on it; see docs/fake-device.md."""
