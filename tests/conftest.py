"""What every test shares."""

import os

# Before torch is imported: threads of several test processes on few cores wait for each other far longer than they work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
