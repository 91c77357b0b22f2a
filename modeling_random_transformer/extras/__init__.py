"""What the core does not need: each folder imports the core, and only the commands import it."""
