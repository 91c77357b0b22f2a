"""The verbs of the command line: one module for each, with its arguments and the call of a function of the package."""
