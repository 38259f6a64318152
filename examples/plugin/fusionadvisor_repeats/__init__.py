"""For fusion-advisor: find and drop a ReLU of a ReLU."""
