"""The metric chrF++. `evaluate.load` is given this folder and finds the file of the same name."""
