"""What every test shares."""

import os

# Before torch is imported: threads of several test processes on few cores mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
