"""How fast the library is, beside its peers."""
