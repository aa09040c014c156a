"""The server of a federation: serving, membership, messages, and the clients as the loop sees them."""
