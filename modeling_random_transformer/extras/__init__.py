"""Optional features. The core imports a folder only by its name, when an option requires it."""
