"""One chain or several for one budget of gradients? Deleted once larger networks have answered it."""
