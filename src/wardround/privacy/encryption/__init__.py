"""Encrypted updates: ciphers, keys, the steward that opens sums, and the wire format."""
