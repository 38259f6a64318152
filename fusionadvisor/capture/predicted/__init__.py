"""The pieces of a prediction: a fake device, what each op launches on it, how long that takes."""
