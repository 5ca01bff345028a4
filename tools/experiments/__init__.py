"""The experiments behind the scripts in ``tools/``."""
