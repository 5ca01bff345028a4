"""Update rules as the inner loop runs them: P members, each with its own weights of the learned network."""
