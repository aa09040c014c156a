"""The live page: run folders are read as they grow, and browsers are told what is new."""
