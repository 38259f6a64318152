"""A live model to a Timeline: profile it here, or predict a device that is not here."""
