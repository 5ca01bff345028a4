"""A small network at every weight as compiled code for CPUs, to rounding what the torch code computes.

`kernel` is what the rules' networks call, `library` finds or compiles the C++, which is kernel.cpp.
"""
