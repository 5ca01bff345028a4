"""Running P samplers side by side on one task."""
