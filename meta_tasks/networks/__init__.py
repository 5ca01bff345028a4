"""Image classifiers by name, and the gradients of many copies of one network at once."""
