"""What the four papers claim, and where it is done here: the rows of docs/papers.md."""
