"""The package `pretrained` under a name that collides with no other: the same module, imported when asked for."""

import sys

import pretrained

sys.modules[__name__] = pretrained
