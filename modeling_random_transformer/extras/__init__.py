"""What the core does not need. The core imports a folder only by its name, when an option asks for it."""
