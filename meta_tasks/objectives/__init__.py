"""What the states that an inner loop collects are worth."""
