"""How fast is the library, and how much memory does it take? Each thing beside its peers, in one sitting.

To be deleted when docs/speed.md quotes no numbers of its own.
"""
