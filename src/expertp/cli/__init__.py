"""The command line: one file per verb, each of which parses, calls and prints, and holds no logic."""
