"""Hand-designed samplers, one file each."""
