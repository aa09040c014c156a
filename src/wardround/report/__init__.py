"""The report: figures and one self-contained HTML page about some runs."""
