"""The command line: one module per group of commands; each parses, calls and prints."""
