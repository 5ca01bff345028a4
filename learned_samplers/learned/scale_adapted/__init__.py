"""Scale-adapted L2E: a learned exploration, then a frozen, learned mass with a law."""
